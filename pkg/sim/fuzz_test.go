// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"testing"
)

// Whatever a state file holds, it is refused or it can be shown and worked with.
func FuzzGPUState(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"mig":true}`, `null`, `{"instances":[{}]}`,
		`{"mig":true,"migPending":true,"instances":[{"id":7,"profile":19,"start":0,"serial":1,"compute":[{"id":0,"profile":0,"start":0,"serial":2}]}],"lastSerial":2}`,
		`{"mig":true,"instances":[{"id":1,"profile":9,"start":0},{"id":2,"profile":9,"start":4}]}`,
		`{"computeMode":3,"timeSlice":2,"limits":[{"cgroup":"/a","inode":1,"soft":2,"hard":3},{"cgroup":"/b","hard":18446744073709551615}]}`,
		`{"clients":[{"pid":7,"name":"x","gpuInstance":3,"computeInstance":-1,"held":true}]}`,
		`{"mig":true,"instances":[{"id":1,"profile":9,"start":0},{"id":0,"profile":0,"start":0}]}`,
	} {
		f.Add([]byte(seed), byte(0))
		f.Add([]byte(seed), byte(6))
	}
	boards, err := Boards()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, which byte) {
		b := &boards[int(which)%len(boards)]
		st, err := decodeGPUState(data, b)
		if err != nil {
			return
		}
		n := newNode("", &spec{Boards: []Board{*b}, GPUs: []gpuSpec{{pciEntry: pciEntry{Path: "pci0000:00/0000:00:01.0"}}}}, newOptions(nil))
		n.state = newCell(&nodeState{}, (*nodeState).clone)
		n.gpus = append(n.gpus, newCell(st, (*gpuState).clone))
		d := n.Device(0)
		if _, err := n.Status(); err != nil {
			t.Fatal(err)
		}
		must(t, n.Init())
		for i := range d.MIG().migDevices(st) {
			m, err := d.MIG().MIGDeviceByIndex(i)
			must(t, err)
			if _, err := m.Attributes(); err != nil {
				t.Fatal(err)
			}
		}
		_ = n.Clients().Add(0, Client{PID: 71, GPUInstance: -1}) // a mode may refuse it
		_ = n.Clients().Add(0, Client{PID: 72, GPUInstance: 1})
		_ = d.Modes().SetComputeMode(ModeExclusiveProcess)
		_, _, _, _ = d.Memory().MemoryLimits("/")
		again, err := json.Marshal(st)
		must(t, err)
		if _, err := decodeGPUState(again, b); err != nil {
			t.Fatalf("not read back: %v: %s", err, again)
		}
	})
}

// Whatever node.json holds, it is refused or the node can be shown.
func FuzzSpec(f *testing.F) {
	s, err := newSpec("a100-pcie-nvlink-pairs", newOptions(nil))
	if err != nil {
		f.Fatal(err)
	}
	data, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema":1,"gpus":[{"path":"pci0000:00/0000:00:01.0"}],"boards":[{}]}`))
	f.Add([]byte(`{"schema":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeSpec(data)
		if err != nil {
			return
		}
		n := newNode("", s, newOptions(nil))
		n.state = newCell(&nodeState{}, (*nodeState).clone)
		for range s.GPUs {
			n.gpus = append(n.gpus, newCell(&gpuState{}, (*gpuState).clone))
		}
		if _, err := n.Status(); err != nil {
			t.Fatal(err)
		}
		n.Sysfs()
		s.procfs()
		must(t, n.Init())
		for _, d := range n.devices {
			_, _ = d.PCI() // any answer will do
			_, _ = d.Links().NVLinkRemotePCI(0)
			_, _ = d.Links().Fabric()
			_, _ = d.Links().TopologyCommonAncestor(n.devices[0])
		}
	})
}

// Whatever state.json holds, it is refused or faults can be applied.
func FuzzNodeState(f *testing.F) {
	f.Add([]byte(`{"boots":1,"bootID":"x","lost":[3],"faults":[{"id":1,"gpu":-1,"call":"*","code":19,"times":2}],"lastFault":1}`))
	f.Add([]byte(`{"faults":[{"skip":-1,"times":-5}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := decodeNodeState(data, 8)
		if err != nil {
			return
		}
		for i := range st.Faults {
			st.Faults[i].Delay = 0
		}
		n, err := New("hgx-h100")
		must(t, err)
		n.state = newCell(st, (*nodeState).clone)
		_ = n.Init() // a fault may stop it
		_, _ = n.Device(3).UUID()
	})
}
