// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestFabric_FabricManager(t *testing.T) {
	aSwitch := [3]string{"0x10de", "0x068000", "nvidia-nvswitch"}
	tests := map[string]struct {
		generation int
		links      []bool
		aSwitch    [3]string
		names      map[string]string // of processes; nil: no procfs
		change     func(d *fakeDevice)
		want       gpu.FabricState
	}{
		"none":                          {8, []bool{false}, aSwitch, map[string]string{"2": "kthreadd", "812": "bash"}, nil, gpu.FabricUnmanaged},
		"none, V100":                    {7, []bool{true}, aSwitch, map[string]string{"2": "kthreadd"}, migErr(gpu.ErrNotSupported), gpu.FabricUnmanaged},
		"running":                       {8, []bool{true}, aSwitch, map[string]string{"2": "kthreadd", "812": "nv-fabricmanage"}, nil, 0},
		"running, wrapped":              {8, []bool{true}, aSwitch, map[string]string{"2": "kthreadd", "812": ".nv-fabricmanag"}, nil, 0},
		"running, perhaps":              {8, []bool{true}, aSwitch, map[string]string{"2": "kthreadd", "812": "ld-linux-x86-64"}, nil, 0},
		"a process that cannot be read": {8, []bool{true}, aSwitch, map[string]string{"2": "kthreadd", "812": "unreadable"}, nil, 0},
		"own PID namespace":             {8, []bool{true}, aSwitch, map[string]string{"1": "cleave-node"}, nil, 0},
		"PID namespace of a node":       {8, []bool{true}, aSwitch, map[string]string{"1": "systemd", "2": "containerd"}, nil, 0},
		"hidden processes":              {8, []bool{true}, aSwitch, map[string]string{"2": "unreadable", "812": "bash"}, nil, 0},
		"no procfs":                     {8, []bool{true}, aSwitch, nil, nil, 0},
		"Hopper":                        {9, []bool{true}, aSwitch, map[string]string{"2": "kthreadd"}, nil, 0},
		"no NVLinks":                    {8, nil, aSwitch, map[string]string{"2": "kthreadd"}, nil, 0},
		"MIG mode":                      {8, []bool{true}, aSwitch, map[string]string{"2": "kthreadd"}, func(d *fakeDevice) { d.mig = true }, 0},
		"perhaps MIG mode":              {8, []bool{true}, aSwitch, map[string]string{"2": "kthreadd"}, migErr(errors.New("unknown error")), 0},
		"no NVSwitch":                   {8, []bool{true}, [3]string{"0x10de", "0x040300", "snd_hda_intel"}, map[string]string{"2": "kthreadd"}, nil, 0},
		"NVSwitch in a virtual machine": {8, []bool{true}, [3]string{"0x10de", "0x068000", "vfio-pci"}, map[string]string{"2": "kthreadd"}, nil, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := h100(0)
			d.generation, d.links, d.errs = tt.generation, tt.links, map[string]error{"FabricInfo": gpu.ErrNotSupported}
			s, err := OpenLibrary(t.Context(), &fakeLibrary{devices: []*fakeDevice{d}}, pciFunctions(map[string][3]string{
				"0000:18:00.0": {"0x10de", "0x030200", "nvidia"}, "0000:05:00.0": tt.aSwitch,
			}))
			must(t, err)
			if tt.names != nil {
				s.manager.procfs = processTable(tt.names)
			}
			if tt.change != nil {
				tt.change(d)
			}
			for range 2 { // the second time it is known
				if got, err := s.Fabric(t.Context(), &s.Node().GPUs[0]); got != tt.want || err != nil {
					t.Errorf("got %s, %v, want %s", got, err, tt.want)
				}
			}
		})
	}
}

// A Fabric Manager that ends is missed although it was seen.
func TestFabric_FabricManagerEnds(t *testing.T) {
	m := &fabricManager{procfs: processTable(map[string]string{"2": "kthreadd", "812": "nv-fabricmanage"})}
	first := m.isMissing(t.Context())
	m.procfs = processTable(map[string]string{"2": "kthreadd"})
	if first || !m.isMissing(t.Context()) {
		t.Errorf("missing while it runs: %t; want false, and true once it has ended", first)
	}
}

func migErr(err error) func(*fakeDevice) { return func(d *fakeDevice) { d.errs["MIGMode"] = err } }

// processTable is a procfs of processes with names, by ID.
func processTable(names map[string]string) fs.FS {
	table := fstest.MapFS{"self/comm": {Data: []byte("cleave-node\n")}, "99/task/99": {}}
	for pid, name := range names {
		table[pid+"/comm"] = &fstest.MapFile{Data: []byte(name + "\n")}
		if name == "unreadable" {
			table[pid+"/comm"] = &fstest.MapFile{Mode: fs.ModeDir}
		}
	}
	return table
}
