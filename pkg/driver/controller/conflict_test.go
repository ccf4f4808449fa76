// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// twoGPUs are 0000:1b:00.0 and 0000:1c:00.0, of which the policy leaves some to others.
func twoGPUs(excluded ...bool) *policy.Node {
	node := &policy.Node{Node: &gpu.Node{}}
	for i, bus := range []uint8{0x1b, 0x1c} {
		node.GPUs = append(node.GPUs, gpu.GPU{PCI: gpu.PCIAddress{Bus: bus}})
		offer := policy.Offer{Whole: true}
		if i < len(excluded) && excluded[i] {
			offer = policy.Offer{Excluded: true}
		}
		node.Offers = append(node.Offers, offer)
	}
	return node
}

func TestConflictOf(t *testing.T) {
	plugin := []cluster.PluginResource{{Name: "nvidia.com/gpu", Quantity: "8"}, {Name: "nvidia.com/mig-1g.10gb", Quantity: "7"}}
	device := func(bus uint8) cluster.Device {
		return cluster.Device{Driver: "gpu.nvidia.com", Name: "gpu-3", PCI: gpu.PCIAddress{Bus: bus}}
	}
	var many []cluster.Device
	for i := range 20 {
		many = append(many, cluster.Device{Driver: "gpu.nvidia.com", Name: fmt.Sprintf("mig-%02d", i), PCI: gpu.PCIAddress{Bus: 0x1b}})
	}
	all, one, none := twoGPUs(), twoGPUs(true), twoGPUs(true, true)
	tests := map[string]struct {
		node      *policy.Node
		resources []cluster.PluginResource
		others    []cluster.Device
		want      []string // nil: no conflict
	}{
		"none":                           {all, nil, nil, nil},
		"device plugin":                  {all, plugin, nil, []string{"nvidia.com/gpu: 8, nvidia.com/mig-1g.10gb: 7", "DaemonSet", "exclude: true", "five minutes"}},
		"device plugin, one GPU left":    {one, plugin, nil, []string{"nvidia.com/gpu: 8"}},
		"device plugin, all left":        {none, plugin, nil, nil},
		"driver":                         {all, nil, []cluster.Device{device(0x1c)}, []string{"driver gpu.nvidia.com has GPU 0000:1c:00.0 as device gpu-3", "exclude: true"}},
		"driver of something else":       {all, nil, []cluster.Device{device(0x1d)}, nil},
		"driver, its GPU left":           {one, nil, []cluster.Device{device(0x1b)}, nil},
		"driver, the other GPU left":     {one, nil, []cluster.Device{device(0x1c)}, []string{"0000:1c:00.0"}},
		"driver, many devices of a GPU":  {all, nil, many, []string{"mig-00", "mig-07, and 12 more"}},
		"device plugin and driver":       {all, plugin, many, []string{"nvidia.com/gpu: 8"}},
		"no GPU of ours":                 {&policy.Node{Node: &gpu.Node{}}, plugin, many, nil},
		"no policy applied, all of ours": {&policy.Node{Node: &gpu.Node{GPUs: []gpu.GPU{{PCI: gpu.PCIAddress{Bus: 0x1b}}}}}, plugin, nil, []string{"nvidia.com/gpu"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := conflictOf(tt.node, tt.resources, tt.others)
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("got %v, want a conflict that names %q", err, tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
		})
	}
}

func TestDesired_Conflict(t *testing.T) {
	b := newBed(t, "a30")
	b.step(Policies)
	b.heard()
	plugin := func(quantity string) []cluster.PluginResource {
		return []cluster.PluginResource{{Name: "nvidia.com/gpu", Quantity: quantity}}
	}
	steps := []struct {
		name      string
		resources []cluster.PluginResource
		again     bool
		events    []string
		conflict  bool
	}{
		{"none", nil, true, nil, false},
		{"device plugin", plugin("2"), false, []string{"Warning GPUConflict"}, true},
		{"unchanged", plugin("2"), false, nil, true},
		{"unchanged, periodic", plugin("2"), true, []string{"Warning GPUConflict"}, true},
		{"more GPUs", plugin("8"), false, []string{"Warning GPUConflict"}, true},
		{"gone", nil, false, []string{"Normal GPUConflictResolved"}, false},
		{"gone, periodic", nil, true, nil, false},
	}
	for _, step := range steps {
		b.Cluster.Node.PluginResources = step.resources
		changed := Cluster
		if step.again {
			changed |= Periodic
		}
		p := b.step(changed)
		if diff := cmp.Diff(step.events, reasons(b.heard())); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", step.name, diff)
		}
		if (p.Status.Conflict != nil) != step.conflict || (b.Memory.Conflict != "") != step.conflict {
			t.Errorf("%s: status %v, conflict %q, want one: %t", step.name, p.Status.Conflict, b.Memory.Conflict, step.conflict)
		}
		b.wantPublished(step.name, b.device(0), true, !step.conflict)
	}
}

// What belongs to another driver shows neither in claims nor, before a pod opens it, in processes: partitions and MIG modes stay as they
// are in a conflict. Its end makes up for all that was due.
func TestDesired_ConflictLeavesGPUs(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.write("default.yaml", "rules: [{mig: {layout: {1g.10gb: 7}}}]")
	plugin := []cluster.PluginResource{{Name: "nvidia.com/gpu", Quantity: "8"}}
	for _, step := range []struct {
		name      string
		resources []cluster.PluginResource
		changed   Aspect
		work      string
	}{
		{"a device plugin at the start", plugin, Inventory | Policies, "recover"},
		{"allocations", plugin, Allocations, ""},
		{"partitions", plugin, Partitions, ""},
		{"it is gone", nil, Cluster, "leave MIG mode, layouts"},
		{"nothing", nil, Cluster, ""},
		{"it is back", plugin, Cluster, ""},
		{"periodic", plugin, Periodic, "recover"},
		{"it is gone again", nil, Cluster, "leave MIG mode, layouts"},
		{"periodic, without it", nil, Periodic, "recover, leave MIG mode, layouts"},
	} {
		b.Cluster.Node.PluginResources = step.resources
		b.step(step.changed)
		if got := b.work(); got != step.work {
			t.Errorf("%s: got work %q, want %q", step.name, got, step.work)
		}
	}
}

func TestDesired_OtherNames(t *testing.T) {
	const other = "gpu.example.com"
	b := newBed(t, "a30")
	b.write("default.yaml", "rules: [{mig: {layout: {1g.6gb: 4}}}]")
	device := cluster.Device{Driver: other, Name: b.device(0), PCI: b.Inventory.GPUs[0].PCI}
	for _, tt := range []struct {
		name    string
		state   *names.Observed
		device  bool
		reason  string // why nothing is published
		ready   bool
		layouts bool
	}{
		{"not a name of Cleave's", nil, true, "another DRA driver publishes", false, false},
		{"publishes", &names.Observed{Published: true, Runs: true}, true, "still publishes", true, false},
		{"claims unknown", &names.Observed{}, false, "not known yet", true, false},
		{"claims known", &names.Observed{Listed: true, Records: 1}, false, "", true, true},
	} {
		b.Names, b.Cluster.Others = nil, nil
		if tt.state != nil {
			b.Names = []DriverName{{other, *tt.state}}
		}
		if tt.device {
			b.Cluster.Others = []cluster.Device{device}
		}
		p := b.step(Names | Partitions)
		if (b.Memory.Conflict == "") != (tt.reason == "") || !strings.Contains(b.Memory.Conflict, tt.reason) {
			t.Errorf("%s: reason %q, want %q", tt.name, b.Memory.Conflict, tt.reason)
		}
		if (p.Status.Conflict == nil) != tt.ready || p.Layouts != tt.layouts {
			t.Errorf("%s: status %v, layouts %t, want ready %t, layouts %t", tt.name, p.Status.Conflict, p.Layouts, tt.ready, tt.layouts)
		}
	}
}
