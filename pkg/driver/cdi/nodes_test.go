// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// On a node where no CUDA program has run since it booted, /dev/nvidia-uvm is not there, and now and then /dev/nvidiactl
// (nvidia-container-toolkit#1979). A spec without them would give every container a GPU that no program can use.
func TestRefresh_ControlNodesMissing(t *testing.T) {
	for _, node := range []string{"nvidia-uvm", "nvidiactl"} {
		t.Run(node, func(t *testing.T) {
			b := newBed(t)
			must(t, b.board.Files().RemoveDeviceNodes(node))
			b.says(b.Refresh(t.Context(), b.node), "/dev/"+node, "nvidia-modprobe -c")
			b.refuses(b.ids(), "/dev/"+node)
			if _, err := os.Stat(b.Path()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an incomplete spec was written: %v", err)
			}
			if got := len(b.Problems()); got != len(b.node.GPUs) {
				t.Errorf("%d GPUs have problems, want all %d", got, len(b.node.GPUs))
			}
			// The node appears: the next claim writes the spec, without a restart.
			must(t, b.createNodes(t.Context(), driverroot.Nodes{Control: true, UVM: true}))
			must(t, b.Ensure(t.Context(), b.ids()))
			if got := paths(&b.onDisk().ContainerEdits); !slices.Contains(got, "/dev/"+node) {
				t.Errorf("device nodes %v, want /dev/%s among them", got, node)
			}
			if got := b.Problems(); len(got) > 0 {
				t.Errorf("problems %v, want none", got)
			}
		})
	}
}

func TestRefresh_CreatesMissingNodes(t *testing.T) {
	b := newBed(t)
	var asked []driverroot.Nodes
	b.opts.CreateNodes = func(ctx context.Context, nodes driverroot.Nodes) error {
		asked = append(asked, nodes)
		return b.createNodes(ctx, nodes)
	}
	must(t, b.Refresh(t.Context(), b.node))
	must(t, b.board.Files().RemoveDeviceNodes("nvidia-uvm", "nvidia-uvm-tools", "nvidia1"))
	must(t, b.Ensure(t.Context(), b.ids()))
	equal(t, "asked for", []driverroot.Nodes{{UVM: true, GPUs: []int{1}}}, asked)
}

func TestRefresh_CreateNodesFails(t *testing.T) {
	b := newBed(t)
	b.opts.CreateNodes = func(context.Context, driverroot.Nodes) error { return errors.New("modprobe: no module nvidia-uvm") }
	must(t, b.board.Files().RemoveDeviceNodes("nvidia-uvm"))
	b.says(b.Refresh(t.Context(), b.node), "/dev/nvidia-uvm", "no module nvidia-uvm")
}

func TestEnsure_OneGPUFails(t *testing.T) {
	tests := map[string]struct {
		spoil func(b *bed) error
		says  string
	}{
		"missing": {func(b *bed) error { return b.board.Files().RemoveDeviceNodes("nvidia1") }, "/dev/nvidia1 is missing"},
		"wrong major": {func(b *bed) error { return b.board.Files().SpoilDeviceNodes("nvidia1") },
			"/dev/nvidia1 has the numbers 240:1 and should have 195:1"},
		"a file": {func(b *bed) error {
			return errors.Join(b.board.Files().RemoveDeviceNodes("nvidia1"), os.WriteFile(filepath.Join(b.root, "dev/nvidia1"), nil, 0o600))
		}, "/dev/nvidia1 is not a character device"},
	}
	for name, tt := range tests {
		for _, atStart := range []bool{true, false} {
			b := newBed(t)
			var changes int
			b.opts.Changed = func() { changes++ }
			if !atStart {
				must(t, b.Refresh(t.Context(), b.node))
			}
			must(t, tt.spoil(b))
			if atStart {
				must(t, b.Refresh(t.Context(), b.node))
			}
			all := b.ids()
			b.refuses(all[1:], tt.says, "nvidia-modprobe -c 1")
			must(t, b.Ensure(t.Context(), all[:1]))
			problems := b.Problems()
			if len(problems) != 1 || problems[b.node.GPUs[1].PCI.DeviceName()] == nil || changes != 1 {
				t.Errorf("%s, at start %t: problems %v after %d changes, want one", name, atStart, problems, changes)
			}
			must(t, b.board.Files().Modprobe(false, 1))
			must(t, b.Ensure(t.Context(), all))
			if got := b.Problems(); len(got) > 0 || changes != 2 {
				t.Errorf("%s, at start %t: problems %v after %d changes, want none", name, atStart, got, changes)
			}
		}
	}
}

func TestRefresh_NoDeviceNodes(t *testing.T) {
	b := newBed(t)
	must(t, b.board.Files().RemoveDeviceNodes("nvidia0", "nvidia1"))
	b.says(b.Refresh(t.Context(), b.node), "/dev/nvidia0")
	b.refuses(b.ids()[1:], "/dev/nvidia")
	for i := range b.node.GPUs {
		b.says(b.Problems()[b.node.GPUs[i].PCI.DeviceName()], gpuNode(b.node.GPUs[i].Minor).path)
	}
}

func TestEnsure_UVMReloaded(t *testing.T) {
	b := newBed(t)
	must(t, b.Refresh(t.Context(), b.node))
	must(t, b.board.Files().SpoilDeviceNodes("nvidia-uvm"))
	b.refuses(b.ids(), "/dev/nvidia-uvm has the numbers 240:0 and should have 507:0")
	must(t, b.board.Files().Modprobe(true))
	must(t, b.Ensure(t.Context(), b.ids()))
}

func TestEnsure_OptionalNodesComeAndGo(t *testing.T) {
	b := newBed(t)
	must(t, b.board.Files().RemoveDeviceNodes("nvidia-uvm-tools", "nvidia-modeset"))
	must(t, b.Refresh(t.Context(), b.node))
	equal(t, "device nodes", []string{"/dev/nvidia-uvm", "/dev/nvidiactl"}, paths(&b.onDisk().ContainerEdits))
	must(t, errors.Join(b.board.Files().Modprobe(true), b.board.Files().Modprobe(false, 254)))
	must(t, b.Ensure(t.Context(), b.ids()))
	equal(t, "device nodes", []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"},
		paths(&b.onDisk().ContainerEdits))
}

// An update of the driver's packages takes the files away that containers mount, while the old driver stays loaded.
func TestEnsure_LibrariesReplaced(t *testing.T) {
	b := newBed(t)
	must(t, b.Refresh(t.Context(), b.node))
	before := b.onDisk()
	must(t, b.board.Files().ReplaceLibraries("590.48.01"))
	defer func() { must(t, b.board.Files().ReplaceLibraries(b.node.DriverVersion)) }()
	b.refuses(b.ids(), b.node.DriverVersion, "590.48.01", "reboot")
	if diff := cmp.Diff(before, b.onDisk()); diff != "" {
		t.Errorf("spec that claims have (-before +after):\n%s", diff)
	}
	must(t, b.board.Files().ReplaceLibraries(b.node.DriverVersion))
	must(t, b.Ensure(t.Context(), b.ids()))
}

// Partitions get the device node of their GPU and not those by which graphics programs use all of it.
func TestRefresh_PartitionsHaveNoDRMNodes(t *testing.T) {
	b := newBed(t)
	must(t, b.Refresh(t.Context(), b.node))
	got := map[string][]string{}
	for _, d := range b.onDisk().Devices {
		got[d.Name] = paths(&d.ContainerEdits)
	}
	want := map[string][]string{}
	for i, drm := range [][]string{{"/dev/dri/card0", "/dev/dri/renderD128"}, {"/dev/dri/card1", "/dev/dri/renderD129"}} {
		name := b.node.GPUs[i].PCI.DeviceName()
		node := gpuNode(b.node.GPUs[i].Minor).path
		want[name] = append(slices.Clone(drm), node)
		want[name+partitionsSuffix] = []string{node}
	}
	equal(t, "device nodes", want, got)
}

func TestMandatoryNodes(t *testing.T) {
	tests := map[string]struct {
		devices string
		want    []deviceNode
		fails   bool
	}{
		"loaded":     {"Character devices:\n195 nvidia\n507 nvidia-uvm\n", []deviceNode{{controlNode, 195, 255}, {uvmNode, 507, 0}}, false},
		"not loaded": {"Character devices:\n195 nvidia\n\nBlock devices:\n507 nvidia-uvm\n", []deviceNode{{controlNode, 195, 255}}, true},
		"no say":     {"Character devices:\n  1 mem\n", []deviceNode{{controlNode, 195, 255}, {uvmNode, anyMajor, 0}}, false},
		"odd line":   {"Character devices:\nx nvidia-uvm\n", []deviceNode{{controlNode, 195, 255}, {uvmNode, anyMajor, 0}}, false},
	}
	for name, tt := range tests {
		got, err := mandatoryNodes(majors(fstest.MapFS{"devices": {Data: []byte(tt.devices)}}))
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(deviceNode{})); diff != "" || (err != nil) != tt.fails {
			t.Errorf("%s: %v: nodes (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestLinksInside(t *testing.T) {
	h := &specs.Hook{Args: []string{"hook", "create-symlinks", "--link", "../card0::/host/dev/dri/by-path/pci-0000:1b:00.0-card"}}
	linksInside(h, "/host")
	equal(t, "arguments", []string{"hook", "create-symlinks", "--link", "../card0::/dev/dri/by-path/pci-0000:1b:00.0-card"},
		h.Args)
}
