// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// condition is what NVML and the tree of a node say of its second GPU.
type condition struct {
	gpus, fabric, mode int
	links              bool
}

// conditionNow opens a session of its own, as NVML lists GPUs when it starts.
func conditionNow(t *testing.T, root string) condition {
	t.Helper()
	n, err := sim.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Init(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Shutdown(); err != nil {
			t.Error(err)
		}
	}()
	var c condition
	if c.gpus, err = n.DeviceCount(); err != nil {
		t.Fatal(err)
	}
	d := n.Device(1)
	info, fabricErr := d.Links().Fabric()
	c.fabric = info.State
	var modeErr, linkErr error
	c.mode, modeErr = d.Modes().VirtualizationMode()
	c.links, linkErr = d.Links().NVLinkState(0)
	for _, err := range []error{fabricErr, modeErr, linkErr} {
		if err != nil && c.gpus == len(status(t, root).GPUs) {
			t.Fatal(err)
		}
	}
	return c
}

func TestFault_Condition(t *testing.T) {
	healthy := condition{gpus: 4, fabric: sim.FabricCompleted, links: true}
	tests := map[string]struct {
		flags []string
		want  condition
		show  string
		end   []string
	}{
		"absent":          {[]string{"--absent"}, condition{gpus: 3}, "absent", []string{"--clear"}},
		"links down":      {[]string{"--links-down"}, condition{gpus: 4, fabric: sim.FabricCompleted}, "NVLinks down on GPU 1", []string{"--clear"}},
		"fabric":          {[]string{"--fabric", "in-progress"}, condition{gpus: 4, fabric: sim.FabricInProgress, links: true}, "fabric in-progress on GPU 1", []string{"--fabric", "model"}},
		"fabric, cleared": {[]string{"--fabric", "not-started"}, condition{gpus: 4, fabric: sim.FabricNotStarted, links: true}, "fabric not-started on GPU 1", []string{"--clear"}},
		"guest":           {[]string{"--virtualization", "vgpu"}, condition{gpus: 4, fabric: sim.FabricCompleted, mode: sim.VirtualizationVGPU, links: true}, "virtualization vgpu on GPU 1", []string{"--virtualization", "none"}},
		"host, cleared":   {[]string{"--virtualization", "host-vgpu"}, condition{gpus: 4, fabric: sim.FabricCompleted, mode: sim.VirtualizationHostVGPU, links: true}, "virtualization host-vgpu on GPU 1", []string{"--clear"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := makeNode(t, "gb200-nvl72")
			fault := func(flags []string) { ok(t, append([]string{"fault", "--root", root, "--gpu", "1"}, flags...)...) }
			fault(tt.flags)
			if got := conditionNow(t, root); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if table := ok(t, "show", "--root", root); !strings.Contains(table, tt.show) {
				t.Errorf("show has no %q:\n%s", tt.show, table)
			}
			fault(tt.end)
			if got := conditionNow(t, root); got != healthy {
				t.Errorf("after %v: got %+v, want %+v", tt.end, got, healthy)
			}
		})
	}
}

// A fabric that is In Progress for a while, as after a start of the node.
func TestFault_FabricForSomeCalls(t *testing.T) {
	root := makeNode(t, "gb200-nvl72")
	ok(t, "fault", "--root", root, "--gpu", "1", "--fabric", "in-progress", "--times", "2")
	for i, want := range []int{sim.FabricInProgress, sim.FabricInProgress, sim.FabricCompleted} {
		if got := conditionNow(t, root).fabric; got != want {
			t.Errorf("call %d: got %s, want %s", i+1, sim.FabricStateName(got), sim.FabricStateName(want))
		}
	}
}

// A Fabric Manager that never starts leaves GPUs that NVML lists and no program can use.
func TestMPS_FabricPending(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.start("-M")
	for _, state := range []string{"not-started", "in-progress"} {
		ok(t, "fault", "--root", b.root, "--gpu", "3", "--fabric", state)
		if _, out, code := b.client(nil); code != 1 || !strings.Contains(out, "CUDA_ERROR_SYSTEM_NOT_READY") {
			t.Errorf("a program while the fabric is %s: exit code %d: %s", state, code, out)
		}
	}
	ok(t, "fault", "--root", b.root, "--gpu", "3", "--fabric", "completed")
	if _, out, code := b.client(nil); code != 0 {
		t.Errorf("a program once the fabric is there: exit code %d: %s", code, out)
	}
	b = newBed(t, "dgx-a100") // whose GPUs do not register
	b.start("-M")
	for manager, want := range map[string]int{"off": 1, "on": 0} {
		ok(t, "fault", "--root", b.root, "--fabric-manager", manager)
		if _, out, code := b.client(nil); code != want || want == 1 && !strings.Contains(out, "CUDA_ERROR_SYSTEM_NOT_READY") {
			t.Errorf("a program with Fabric Manager %s: exit code %d: %s", manager, code, out)
		}
	}
}
