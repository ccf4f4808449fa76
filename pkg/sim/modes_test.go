// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func migPartition(t *testing.T, d *Device, profile, compute, start int) *MIGDevice {
	t.Helper()
	gi, err := d.MIG().CreateGPUInstanceWithPlacement(profile, gpu.Placement{Start: start, Size: d.board.profileByID(profile).Size})
	must(t, err)
	ci, err := gi.CreateComputeInstance(compute)
	must(t, err)
	return MIGDeviceOf(ci)
}

func TestComputeMode(t *testing.T) {
	n := testNode(t, "hgx-h100")
	d := n.Device(0)
	for _, mode := range []int{ModeExclusiveProcess, ModeProhibited, ModeDefault, ModeExclusiveProcess} {
		must(t, d.Modes().SetComputeMode(mode))
		if got, err := d.Modes().ComputeMode(); got != mode || err != nil {
			t.Errorf("ComputeMode = %d, %v, want %d", got, err, mode)
		}
	}
	for _, mode := range []int{1, 4, -1} {
		if err := d.Modes().SetComputeMode(mode); !errors.Is(err, gpu.ErrInvalidArgument) {
			t.Errorf("SetComputeMode(%d) = %v", mode, err)
		}
	}
	intoMIG(t, d)
	if _, err := d.Modes().ComputeMode(); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("ComputeMode of a GPU in MIG mode = %v", err)
	}
	if err := d.Modes().SetComputeMode(ModeDefault); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("SetComputeMode of a GPU in MIG mode = %v", err)
	}
	one, two := migPartition(t, d, 9, 2, 0), migPartition(t, d, 9, 2, 4)
	must(t, one.SetComputeMode(ModeExclusiveProcess))
	if err := one.SetComputeMode(7); !errors.Is(err, gpu.ErrInvalidArgument) {
		t.Errorf("SetComputeMode(7) of a partition = %v", err)
	}
	for m, want := range map[*MIGDevice]int{one: ModeExclusiveProcess, two: ModeDefault} {
		if got, err := m.ComputeMode(); got != want || err != nil {
			t.Errorf("ComputeMode of a partition = %d, %v, want %d", got, err, want)
		}
	}
	must(t, errors.Join(one.compute.Destroy(), two.compute.Destroy()))
	if _, err := one.ComputeMode(); err == nil {
		t.Error("a partition that is gone has a compute mode")
	}
}

func TestComputeMode_Clients(t *testing.T) {
	n := testNode(t, "hgx-h100")
	set := func(gpu, mode int) func() error {
		return func() error { return n.Device(gpu).Modes().SetComputeMode(mode) }
	}
	add := func(gpu, pid, gi, ci int) func() error {
		return func() error {
			return n.Clients().Add(gpu, Client{PID: pid, Name: "python", GPUInstance: gi, ComputeInstance: ci})
		}
	}
	intoMIG(t, n.Device(1))
	one, two := migPartition(t, n.Device(1), 9, 2, 0), migPartition(t, n.Device(1), 9, 2, 4)
	a, b := one.compute.parent.id, two.compute.parent.id
	must(t, one.SetComputeMode(ModeExclusiveProcess))
	steps := []struct {
		what string
		do   func() error
		want string // in the error; empty: none
	}{
		{"the first", add(0, 1, -1, -1), ""},
		{"a mode that comes later", set(0, ModeExclusiveProcess), ""},
		{"the first again", add(0, 1, -1, -1), ""},
		{"a second", add(0, 2, -1, -1), "EXCLUSIVE_PROCESS, and it is in use by process 1 (python)"},
		{"the first leaves", func() error { return n.Clients().Remove(0, 1) }, ""},
		{"a second, alone", add(0, 2, -1, -1), ""},
		{"nobody may", set(0, ModeProhibited), ""},
		{"a third", add(0, 3, -1, -1), "PROHIBITED"},
		{"all may", set(0, ModeDefault), ""},
		{"a third, again", add(0, 3, -1, -1), ""},
		{"one in the partition", add(1, 1, a, 0), ""},
		{"two in the partition", add(1, 2, a, 0), "EXCLUSIVE_PROCESS"},
		{"one in the other", add(1, 2, b, 0), ""},
		{"two in the other", add(1, 3, b, 0), ""},
	}
	for _, s := range steps {
		err := s.do()
		if (err == nil) != (s.want == "") || err != nil && !strings.Contains(err.Error(), s.want) {
			t.Fatalf("%s: %v, want %q", s.what, err, s.want)
		}
	}
	processes, err := n.Device(0).Memory().Processes()
	want := []Client{{PID: 2, Name: "python", GPUInstance: -1, ComputeInstance: -1}, {PID: 3, Name: "python", GPUInstance: -1, ComputeInstance: -1}}
	if diff := cmp.Diff(want, processes); diff != "" || err != nil {
		t.Errorf("processes, %v (-want +got):\n%s", err, diff)
	}
}

func TestComputeMode_Names(t *testing.T) {
	for mode, want := range []string{"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS", "4"} {
		if got := ComputeModeName(mode); got != want {
			t.Errorf("name of %d = %s, want %s", mode, got, want)
		}
	}
}
