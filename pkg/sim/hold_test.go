// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestHold(t *testing.T) {
	for name, node := range map[string]*Node{"on disk": openNode(t, createNode(t, "hgx-h100")), "in memory": testNode(t, "hgx-h100")} {
		h, err := node.Clients().Hold("server")
		must(t, err)
		for _, memory := range []uint64{1 << 20, 5 << 20} {
			must(t, h.Use(3, -1, -1, memory))
		}
		got, err := node.Device(3).Memory().Processes()
		want := []Client{{PID: os.Getpid(), Name: "server", Memory: 5 << 20, GPUInstance: -1, ComputeInstance: -1, Held: node.Root() != ""}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: processes, %v (-want +got):\n%s", name, err, diff)
		}
		if activation, err := node.Device(3).MIG().SetMIGMode(true); !errors.Is(activation, gpu.ErrInUse) || err != nil {
			t.Errorf("%s: MIG mode of a GPU in use = %v, %v", name, activation, err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if got, err := node.Device(3).Memory().Processes(); len(got) > 0 || err != nil {
			t.Errorf("%s: processes after Close = %v, %v", name, got, err)
		}
	}
}

// A process that is killed takes nothing back: its lock is gone, and everybody sees that.
func TestHold_ProcessEnds(t *testing.T) {
	root := createNode(t, "hgx-h100")
	node, other := openNode(t, root), openNode(t, root)
	h, err := node.Clients().Hold("server")
	must(t, err)
	must(t, h.Use(3, -1, -1, 0))
	must(t, other.Clients().Add(3, Client{PID: 1, Name: "dcgm", GPUInstance: -1}))
	count := func(want int) {
		t.Helper()
		for _, n := range []*Node{node, other} {
			got, err := n.Device(3).Memory().Processes()
			if len(got) != want || err != nil {
				t.Errorf("processes = %v, %v, want %d", got, err, want)
			}
		}
	}
	count(2)
	if err := h.file.Close(); err != nil { // what the end of a process does
		t.Fatal(err)
	}
	count(1)
	st, err := other.Status()
	if err != nil || len(st.GPUs[3].Clients) != 1 {
		t.Errorf("clients = %v, %v", st.GPUs[3].Clients, err)
	}
	must(t, other.Clients().Remove(3, 1))
	if activation, err := node.Device(3).MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Errorf("MIG mode of a GPU that is not in use = %v, %v", activation, err)
	}
}

func TestHold_ComputeMode(t *testing.T) {
	root := createNode(t, "hgx-h100")
	n := openNode(t, root)
	must(t, n.Device(0).Modes().SetComputeMode(ModeProhibited))
	h, err := n.Clients().Hold("server")
	must(t, err)
	if err := h.Use(0, -1, -1, 0); err == nil {
		t.Error("a GPU that is prohibited was taken")
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func TestHold_Check(t *testing.T) {
	for name, fault := range map[string]func(*Node) error{
		"lost":   func(n *Node) error { return n.Hardware().Lose(0) },
		"reboot": func(n *Node) error { return n.Driver().Reboot() },
	} {
		n := openNode(t, createNode(t, "t4"))
		h, err := n.Clients().Hold("server")
		must(t, err)
		must(t, errors.Join(h.Use(0, -1, -1, 0), h.Check()))
		must(t, fault(n))
		if h.Check() == nil {
			t.Errorf("%s: nothing has happened", name)
		}
		if err := h.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHold_Faults(t *testing.T) {
	n := testNode(t, "hgx-h100")
	inject := func(f Fault) {
		t.Helper()
		if _, err := n.Faults().Inject(f); err != nil {
			t.Fatal(err)
		}
	}
	inject(Fault{GPU: -1, Call: "*", Code: CodeUnknown})
	inject(Fault{GPU: 3, Call: CallMPSServerStart, Code: CodeTimeout})
	tests := []struct {
		call string
		gpus []int
		want int
	}{
		{CallMPSControlStart, []int{3}, CodeSuccess}, // * is every NVML function
		{CallMPSServerStart, nil, CodeSuccess},
		{CallMPSServerStart, []int{1, 2}, CodeSuccess},
		{CallMPSServerStart, []int{1, 3}, CodeTimeout},
	}
	for _, tt := range tests {
		err := n.Faults().Apply(tt.call, tt.gpus...)
		if (err == nil) != (tt.want == CodeSuccess) || err != nil && !isCode(err, tt.want) {
			t.Errorf("Apply(%s, %v) = %v, want %d", tt.call, tt.gpus, err, tt.want)
		}
	}
}
