// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

func TestPartitions_Lifecycle(t *testing.T) {
	for _, model := range []string{"hgx-h100", "rtx-pro-6000", "gb200-nvl72", "hgx-b200"} {
		b := newBed(t, model)
		b.enable()
		for _, s := range b.gpu(0).Shapes() {
			if !s.IsPartition() {
				continue
			}
			created, err := b.CreatePartition(t.Context(), s)
			if err != nil {
				t.Errorf("%s: %s: %v", model, s.Name(), err)
				continue
			}
			if created.ProfileID != s.Profile.ID || created.Placement != s.Placement || created.CI == nil || !strings.HasPrefix(created.UUID, "MIG-") {
				t.Errorf("%s: %s: got %+v", model, s.Name(), created)
			}
			if ci := b.status().Instances[0].Compute[0]; ci.Size != s.Profile.ComputeSlices {
				t.Errorf("%s: the compute instance of %s has %d slices, want all %d", model, s.Name(), ci.Size, s.Profile.ComputeSlices)
			}
			found, err := b.Partitions(t.Context(), b.gpu(0))
			if diff := cmp.Diff([]gpu.Partition{created}, found); diff != "" || err != nil {
				t.Errorf("%s: partitions (-created +found): %v\n%s", model, err, diff)
			}
			for range 2 { // gone already is no error
				if err := b.DestroyPartition(t.Context(), b.gpu(0).PCI, created); err != nil {
					t.Errorf("%s: destroy %s: %v", model, s.Name(), err)
				}
			}
			if got := b.instances(); len(got) > 0 {
				t.Errorf("%s: %v is left of %s", model, got, s.Name())
			}
		}
	}
}

func TestCreatePartition_StepFails(t *testing.T) {
	for _, call := range sim.CallNames() {
		b := newBed(t, "hgx-h100")
		b.enable()
		kept := b.create(19, 0)
		must(t, b.node.Faults().FailNth(call, 1, sim.CodeUnknown))
		part, err := b.CreatePartition(t.Context(), b.shape(9, 4))
		want := []string{"19@0/1"}
		if err == nil {
			want = append([]string{"9@4/1"}, want...) // the lower ID first
		}
		if diff := cmp.Diff(want, b.instances()); diff != "" {
			t.Errorf("%s failed, CreatePartition said %v (%+v): instances (-want +got):\n%s", call, err, part, diff)
		}
		if errors.Is(err, gpu.ErrLeftBehind) {
			t.Errorf("%s failed: got %v though nothing is left", call, err)
		}
		must(t, b.node.Faults().Clear(-1))
		if err := b.DestroyPartition(t.Context(), b.gpu(0).PCI, kept); err != nil {
			t.Errorf("%s failed: the neighbouring partition: %v", call, err)
		}
	}
}

func TestCreatePartition_Occupied(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.enable()
	b.create(9, 4)
	_, err := b.CreatePartition(t.Context(), b.shape(19, 5))
	mustFail(t, err, gpu.ErrInsufficientResources)
	b.create(20, 0)
	_, err = b.CreatePartition(t.Context(), b.shape(20, 1)) // there is one OFA engine
	mustFail(t, err, gpu.ErrInsufficientResources)
	if errors.Is(err, gpu.ErrLeftBehind) {
		t.Errorf("got %v though nothing was created", err)
	}
}

func TestCreatePartition_LeftBehind(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.enable()
	for _, call := range []string{"nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceDestroy"} {
		must(t, b.node.Faults().FailCall(call, sim.CodeUnknown))
	}
	_, err := b.CreatePartition(t.Context(), b.shape(9, 4))
	mustFail(t, err, gpu.ErrLeftBehind)
}

func TestDestroyPartition_Unmanaged(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.enable()
	ours := b.create(5, 0) // GPU instance 1
	must(t, b.DestroyPartition(t.Context(), b.gpu(0).PCI, ours))
	theirs := b.create(9, 0) // the same ID, another profile
	if theirs.GI != ours.GI {
		t.Fatalf("GPU instances %d and %d, want the same ID", ours.GI, theirs.GI)
	}
	if err := b.DestroyPartition(t.Context(), b.gpu(0).PCI, ours); err != nil {
		t.Error(err)
	}
	equal(t, "instances", []string{"9@0/1"}, b.instances())
}

func TestDestroyPartition_InUse(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.enable()
	part := b.create(9, 4)
	must(t, b.node.Clients().Add(0, sim.Client{PID: 7, Name: "train", GPUInstance: part.GI, ComputeInstance: *part.CI}))
	mustFail(t, b.DestroyPartition(t.Context(), b.gpu(0).PCI, part), gpu.ErrInUse)
	equal(t, "instances", []string{"9@4/1"}, b.instances())
	must(t, b.node.Clients().Remove(0, 7))
	if err := b.DestroyPartition(t.Context(), b.gpu(0).PCI, part); err != nil {
		t.Error(err)
	}
}

func TestDestroyPartition_NoComputeInstance(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.enable()
	if _, err := b.node.Device(0).MIG().CreateGPUInstanceWithPlacement(14, gpu.Placement{Start: 2, Size: 2}); err != nil {
		t.Fatal(err)
	}
	found, err := b.Partitions(t.Context(), b.gpu(0))
	if err != nil || len(found) != 1 || found[0].CI != nil || found[0].UUID != "" || found[0].ProfileID != 14 {
		t.Fatalf("got %+v, %v, want one partition without compute instance", found, err)
	}
	if err := b.DestroyPartition(t.Context(), b.gpu(0).PCI, found[0]); err != nil {
		t.Error(err)
	}
	// A record that knows of none meets one that has several after all.
	gi, err := b.node.Device(0).MIG().CreateGPUInstanceWithPlacement(14, gpu.Placement{Start: 2, Size: 2})
	must(t, err)
	for range 2 {
		if _, err := gi.CreateComputeInstance(0); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DestroyPartition(t.Context(), b.gpu(0).PCI, found[0]); err != nil {
		t.Error(err)
	}
	if got := b.instances(); len(got) > 0 {
		t.Errorf("%v is left", got)
	}
}

func TestPartitions_MIGModeOff(t *testing.T) {
	for _, model := range []string{"hgx-h100", "l40s", "dgx-a100"} {
		b := newBed(t, model)
		if found, err := b.Partitions(t.Context(), b.gpu(0)); err != nil || len(found) > 0 {
			t.Errorf("%s: got %v, %v, want none", model, found, err)
		}
		if err := b.DestroyPartition(t.Context(), b.gpu(0).PCI,
			gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Size: 1}, GI: 7}); err != nil {
			t.Errorf("%s: destroy what is not there: %v", model, err)
		}
	}
}

func TestPartitions_TransientError(t *testing.T) {
	for _, call := range sim.CallNames() {
		for nth := 1; nth < 20; nth++ {
			b := newBed(t, "hgx-h100")
			b.enable()
			created := b.create(9, 4)
			must(t, b.node.Faults().FailNth(call, nth, sim.CodeUnknown))
			b.node.Calls().Reset()
			found, err := b.Partitions(t.Context(), b.gpu(0))
			if diff := cmp.Diff([]gpu.Partition{created}, found); err == nil && diff != "" {
				t.Errorf("call %d of %s failed: partitions (-created +found):\n%s", nth, call, diff)
			}
			if b.node.Calls().Of(call) < int64(nth) {
				break
			}
		}
	}
}

// A GPU instance whose compute instance cannot be read is there: taken for absent, it would be left behind, or be destroyed as
// one that Cleave was about to create.
func TestPartitionAt_ComputeInstanceUnreadable(t *testing.T) {
	for _, call := range []string{"nvmlComputeInstanceGetInfo_v2", "nvmlGpuInstanceGetComputeInstances"} {
		for _, code := range []int{sim.CodeNotFound, sim.CodeInvalidArgument} {
			b := newBed(t, "hgx-h100")
			b.enable()
			created := b.create(9, 4)
			must(t, b.node.Faults().FailNth(call, 1, code))
			if found, err := b.PartitionAt(t.Context(), b.gpu(0).PCI, created); err == nil {
				t.Errorf("%s returns %d: got %v, want an error", call, code, found)
			}
		}
	}
}

func TestSetMIG_Hopper(t *testing.T) {
	b := newBed(t, "hgx-h100")
	pci := b.gpu(0).PCI
	mode := func() [2]bool { return [2]bool{b.status().MIG, b.status().MIGPending} }
	on, off := [2]bool{true, true}, [2]bool{}
	must(t, b.node.Clients().Add(0, sim.Client{PID: 71, Name: "dcgm", GPUInstance: -1, ComputeInstance: -1}))
	mustFail(t, b.SetMIG(t.Context(), pci, true), gpu.ErrInUse)
	if mode() != off {
		t.Errorf("refused: got mode and pending mode %v, want %v", mode(), off)
	}
	must(t, b.node.Clients().Remove(0, 71))
	b.enable()
	b.enable()
	if mode() != on {
		t.Errorf("enabled: got mode and pending mode %v, want %v", mode(), on)
	}
	part := b.create(19, 0)
	mustFail(t, b.SetMIG(t.Context(), pci, false), gpu.ErrPartitioned)
	if mode() != on {
		t.Errorf("refused with a partition: got mode and pending mode %v, want %v", mode(), on)
	}
	must(t, errors.Join(b.DestroyPartition(t.Context(), pci, part), b.SetMIG(t.Context(), pci, false)))
	if mode() != off {
		t.Errorf("disabled: got mode and pending mode %v, want %v", mode(), off)
	}
	must(t, b.node.Faults().FailNth("nvmlDeviceSetMigMode", 1, sim.CodeUnknown))
	if err := b.SetMIG(t.Context(), pci, true); err == nil || mode() != off {
		t.Errorf("failed: got %v and modes %v, want an error and %v", err, mode(), off)
	}
}

func TestSetMIG_NotSupported(t *testing.T) {
	b := newBed(t, "l40s")
	mustFail(t, b.SetMIG(t.Context(), b.gpu(0).PCI, true), gpu.ErrNotSupported)
	mustFail(t, b.SetMIG(t.Context(), gpu.PCIAddress{Bus: 0xfe}, true), gpu.ErrNotFound)
}

// What Prepare and Unprepare of one partition ask of a session, see pkg/driver/claims.
func TestCreatePartition_CallCount(t *testing.T) {
	b := newBed(t, "hgx-h100")
	ctx := t.Context()
	var part gpu.Partition
	for round := range 3 {
		prepare := b.calls(func() {
			must(t, errors.Join(b.VerifyGPU(ctx, b.gpu(0)), b.SetMIG(ctx, b.gpu(0).PCI, true)))
			part = b.create(19, 6)
		})
		unprepare := b.calls(func() {
			must(t, b.DestroyPartition(ctx, b.gpu(0).PCI, part))
		})
		t.Logf("round %d: %d calls to prepare, %d to unprepare", round, prepare, unprepare)
		if round > 0 && (prepare > 9 || unprepare > 6) {
			t.Errorf("round %d: got %d calls to prepare and %d to unprepare, want at most 9 and 6", round, prepare, unprepare)
		}
	}
}
