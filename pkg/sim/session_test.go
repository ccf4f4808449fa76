// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestResetGPU_Sessions(t *testing.T) {
	tests := map[string]struct {
		prepare func(t *testing.T, other, own *Node)
		want    error
	}{
		"idle":                        {func(*testing.T, *Node, *Node) {}, nil},
		"driver open, GPU not":        {func(t *testing.T, other, _ *Node) { must(t, other.Init()) }, nil},
		"another GPU open":            {func(t *testing.T, other, _ *Node) { must(t, other.Init()); touch(t, other, 1) }, nil},
		"open elsewhere":              {func(t *testing.T, other, _ *Node) { must(t, other.Init()); touch(t, other, 0) }, gpu.ErrInUse},
		"open here":                   {func(t *testing.T, _, own *Node) { must(t, own.Init()); touch(t, own, 0) }, gpu.ErrInUse},
		"first of two sessions ended": {func(t *testing.T, other, _ *Node) { initTwice(t, other); touch(t, other, 0); must(t, other.Shutdown()) }, gpu.ErrInUse},
		"last session ended": {func(t *testing.T, other, _ *Node) {
			must(t, other.Init())
			touch(t, other, 0)
			must(t, other.Shutdown())
		}, nil},
		"client":                          {func(t *testing.T, other, _ *Node) { must(t, other.Clients().Add(0, Client{PID: 7, GPUInstance: -1})) }, gpu.ErrInUse},
		"persistence mode":                {func(t *testing.T, other, _ *Node) { persist(t, other); must(t, other.Shutdown()) }, gpu.ErrInUse},
		"session refused by a lost GPU 1": {func(t *testing.T, other, _ *Node) { must(t, other.Hardware().Lose(1)); must(t, other.Init()) }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := createNode(t, "a30")
			other, own := openOnly(t, root), openOnly(t, root)
			test.prepare(t, other, own)
			if err := own.Hardware().Reset(0); !errors.Is(err, test.want) {
				t.Fatalf("Reset = %v, want %v", err, test.want)
			}
			if err := own.Hardware().ForceReset(0); err != nil {
				t.Errorf("ForceReset = %v", err)
			}
		})
	}
}

// A mode change resets the boards before Hopper, and others' sessions keep it from taking effect; one's own does not.
func TestSetMIGMode_OpenElsewhere(t *testing.T) {
	root := createNode(t, "a30")
	other, own := openNode(t, root), openNode(t, root)
	touch(t, other, 0)
	if activation, err := own.Device(0).MIG().SetMIGMode(true); !errors.Is(activation, gpu.ErrInUse) || err != nil {
		t.Fatalf("SetMIGMode with the GPU open elsewhere = %v, %v", activation, err)
	}
	if on, pending, err := own.Device(0).MIG().MIGMode(); on || !pending || err != nil {
		t.Errorf("mode = %t, pending %t, %v", on, pending, err)
	}
	must(t, other.Shutdown())
	if activation, err := own.Device(0).MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Fatalf("SetMIGMode with the GPU open here alone = %v, %v", activation, err)
	}
	if on, _, err := own.Device(0).MIG().MIGMode(); !on || err != nil {
		t.Errorf("mode = %t, %v", on, err)
	}
	must(t, other.Init())
	touch(t, other, 0)
	must(t, own.Shutdown())
	if err := own.Hardware().Reset(0); !errors.Is(err, gpu.ErrInUse) || !strings.Contains(err.Error(), "process") {
		t.Errorf("Reset = %v, want IN_USE with a process", err)
	}
}

// From Hopper on the mode changes without a reset, whoever has the GPU open.
func TestSetMIGMode_HopperOpenElsewhere(t *testing.T) {
	root := createNode(t, "hgx-h100")
	other, own := openNode(t, root), openNode(t, root)
	touch(t, other, 0)
	if activation, err := own.Device(0).MIG().SetMIGMode(true); activation != nil || err != nil {
		t.Errorf("SetMIGMode = %v, %v", activation, err)
	}
}

func TestUnloadDriver_Sessions(t *testing.T) {
	root := createNode(t, "a30")
	other, own := openNode(t, root), openOnly(t, root)
	if err := own.Driver().Unload(); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("Unload with a session = %v", err)
	}
	must(t, other.Shutdown())
	must(t, own.Driver().Unload())
}

// A process that is killed has nothing open, and does not have to say so.
func TestResetGPU_KilledProcess(t *testing.T) {
	const env = "SIM_TEST_SESSION_ROOT"
	if root := os.Getenv(env); root != "" {
		n := openOnly(t, root)
		must(t, n.Init())
		touch(t, n, 0)
		_, _ = os.Stdout.WriteString("open\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the kill; a select without cases is a deadlock to the runtime
		return
	}
	root := createNode(t, "a30")
	cmd := exec.Command(os.Args[0], "-test.run=^TestResetGPU_KilledProcess$")
	cmd.Env = append(os.Environ(), env+"="+root)
	out, err := cmd.StdoutPipe()
	must(t, err)
	in, err := cmd.StdinPipe()
	must(t, err)
	defer func() { _ = in.Close() }()
	must(t, cmd.Start())
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	n := openOnly(t, root)
	if err := n.Hardware().Reset(0); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("Reset with a process = %v", err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	if err := n.Hardware().Reset(0); err != nil {
		t.Errorf("Reset after the process was killed = %v", err)
	}
}

// What a reset and a remake without the users of a GPU knowing leave the same: boot, IDs, places, UUIDs. Handles are stale, and
// serial numbers, which only the simulation has, differ.
func TestCreate_Force(t *testing.T) {
	tests := map[string]func(n *Node) error{
		"reset":  func(n *Node) error { return n.Hardware().ForceRemake(0) },
		"reload": func(n *Node) error { return n.Driver().ForceReload(true) },
	}
	for name, remake := range tests {
		for _, model := range []string{"hgx-h100", "dgx-a100"} {
			t.Run(name+"/"+model, func(t *testing.T) {
				n := openNode(t, createNode(t, model))
				intoMIG(t, n.Device(0))
				gi, err := n.Device(0).MIG().CreateGPUInstanceWithPlacement(9, gpu.Placement{Start: 4, Size: 4})
				must(t, err)
				_, err = gi.CreateComputeInstance(2)
				must(t, err)
				before, err := n.Status()
				must(t, err)
				must(t, remake(n))
				after, err := n.Status()
				must(t, err)
				if diff := cmp.Diff(before, after, cmpopts.IgnoreFields(InstanceStatus{}, "Serial")); diff != "" {
					t.Errorf("status (-before +after):\n%s", diff)
				}
				if before.GPUs[0].Instances[0].Serial == after.GPUs[0].Instances[0].Serial {
					t.Error("the serial number does not tell the partition from the one before")
				}
				if _, err := gi.Info(); !errors.Is(err, gpu.ErrInvalidArgument) {
					t.Errorf("the handle of before = %v", err)
				}
			})
		}
	}
}

// openOnly opens a node without a session.
func openOnly(t *testing.T, root string) *Node {
	t.Helper()
	n, err := Open(root)
	must(t, err)
	keep(t, n)
	return n
}

// keep keeps a node until the test ends: the garbage collector closes the files of one that nobody has, and with them its sessions.
func keep(t *testing.T, n *Node) {
	t.Cleanup(func() { runtime.KeepAlive(n) })
}

// touch calls a function of a GPU.
func touch(t *testing.T, n *Node, index int) {
	t.Helper()
	_, err := n.Device(index).Name()
	must(t, err)
}

// intoMIG puts a GPU into MIG mode.
func intoMIG(t *testing.T, d *Device) {
	t.Helper()
	_, err := d.MIG().SetMIGMode(true)
	must(t, err)
}

func initTwice(t *testing.T, n *Node) {
	t.Helper()
	must(t, n.Init())
	must(t, n.Init())
}

func persist(t *testing.T, n *Node) {
	t.Helper()
	must(t, n.Init())
	must(t, n.Device(0).Modes().SetPersistenceMode(true))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Where the driver resets no GPU of a board by itself, neither a mode nor nvidia-smi changes one alone.
func TestResetGPU_Together(t *testing.T) {
	for model, want := range map[string]int{"dgx-a100": 7, "a100-pcie-nvlink-pairs": 1, "a30": 0} {
		t.Run(model, func(t *testing.T) {
			n := openNode(t, createNode(t, model))
			must(t, n.Driver().SetQuirk(QuirkResetTogether, true))
			missing := n.Hardware().ResetWith(0)
			if len(missing) != want {
				t.Fatalf("ResetWith = %v, want %d others", missing, want)
			}
			activation, err := n.Device(0).MIG().SetMIGMode(true)
			if on, pending, _ := n.Device(0).MIG().MIGMode(); err != nil || (activation != nil) != (want > 0) || on != (want == 0) || !pending {
				t.Errorf("SetMIGMode = %v, %v: %t, pending %t", activation, err, on, pending)
			}
			must(t, n.Shutdown())
			if err := n.Hardware().Reset(0); (err != nil) != (want > 0) {
				t.Errorf("Reset = %v", err)
			}
			must(t, n.Hardware().Reset(0, missing...))
			st, err := n.Status()
			if must(t, err); !st.GPUs[0].MIG {
				t.Error("the mode is still pending")
			}
		})
	}
}

// A reset that fails leaves the mode pending.
func TestResetGPU_Fails(t *testing.T) {
	n := openNode(t, createNode(t, "a30"))
	if _, err := n.Faults().Inject(Fault{GPU: 0, Call: CallReset, Code: CodeUnknown, Times: 1}); err != nil {
		t.Fatal(err)
	}
	activation, err := n.Device(0).MIG().SetMIGMode(true)
	if on, pending, _ := n.Device(0).MIG().MIGMode(); err != nil || !errors.Is(activation, gpu.ErrResetRequired) || on || !pending {
		t.Errorf("SetMIGMode = %v, %v: %t, pending %t", activation, err, on, pending)
	}
	must(t, n.Shutdown())
	must(t, n.Hardware().Reset(0))
}
