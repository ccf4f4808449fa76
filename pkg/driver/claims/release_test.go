// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// recordState is the state that a claim's record on disk is in.
func (p *plugin) recordState(uid types.UID) records.State {
	p.t.Helper()
	r, err := p.Ledger.store.Read(uid)
	must(p.t, err)
	return r.State
}

// hold puts a process into the partition of a claim.
func (b *simBed) hold(device records.Device, pid int) {
	b.t.Helper()
	must(b.t, b.node.Clients().Add(0, sim.Client{PID: pid, Name: "train", GPUInstance: device.Partition.GI, ComputeInstance: *device.Partition.CI}))
}

func TestUnprepare_PartitionWithoutHardware(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newSimBed(t, "hgx-h100")
		b.prepare("a", b.name(0, 9, 4), b.name(1, 19, 0))
		b.prepare("b", b.name(0, 19, 3))
		b.SetWaiting(gpu.ErrDriverNotLoaded)
		b.unprepare("a")
		b.unprepare("a")
		b.want(list("0 19@3", "0 9@4", "1 19@0"), list("a", "b"), list("b"))
		if got := b.recordState("a"); got != records.Releasing {
			t.Errorf("the record is %q, want %q", got, records.Releasing)
		}
		if restart {
			b = b.restart()
		} else {
			b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
			wantError(t, b.tryPrepare("c", b.name(0, 19, 5)), "ns/claim-a") // its partition is still there
			b.Recover(t.Context())
		}
		b.want(list("0 19@3"), list("b"), list("b"))
		b.prepare("c", b.name(0, 19, 5))
	}
}

func TestRecover_ReportsWhatIsLeft(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	var reported []string
	b.onRelease = func(claim records.Claim, err error) {
		reported = append(reported, fmt.Sprintf("%s in use %t, removed %t", claim.UID, errors.As(err, new(*InUseError)), err == nil))
	}
	devices := b.prepare("a", b.name(0, 9, 4))
	b.prepare("b", b.name(0, 19, 0))
	b.hold(devices[0], 4711)
	b.SetWaiting(gpu.ErrDriverNotLoaded)
	b.unprepare("a")
	b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
	b.Recover(t.Context())
	must(t, b.node.Clients().Remove(0, 4711))
	b.Recover(t.Context())
	b.Recover(t.Context())
	equal(t, "reported", []string{"a in use true, removed false", "a in use false, removed true"}, reported)
}

func TestUnprepare_PartitionInUse(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	devices := b.prepare("a", b.name(0, 9, 4), b.name(0, 19, 0))
	b.hold(devices[0], 4711)
	changes := 0
	b.Ledger.changed = func() { changes++ }
	err := b.Unprepare(t.Context(), refOf(deviceClaim("a")))
	if changes != 1 {
		t.Errorf("%d changes were reported, want 1: the devices are to be tainted now", changes)
	}
	if err == nil || !strings.Contains(err.Error(), "4711") || !strings.Contains(err.Error(), b.name(0, 9, 4)) {
		t.Errorf("got %v, want an error that names the device and process 4711", err)
	}
	occupied := overlapping(b, 0, gpu.Placement{Start: 4, Size: 4})
	for _, name := range overlapping(b, 0, gpu.Placement{Start: 0, Size: 1}) {
		if !slices.Contains(occupied, name) {
			occupied = append(occupied, name)
		}
	}
	check := func(step string) {
		t.Helper()
		for _, name := range overlapping(b, 0, gpu.Placement{Start: 4, Size: 4}) {
			if !slices.Contains(b.Partitions.Occupied(), name) {
				t.Errorf("%s: %s is not among the occupied devices", step, name)
			}
		}
		for _, name := range b.Partitions.Occupied() {
			if !slices.Contains(occupied, name) {
				t.Errorf("%s: %s is occupied, want nothing but what overlaps the claim's partitions", step, name)
			}
		}
		if !slices.Contains(b.instances(), "0 9@4") {
			t.Errorf("%s: the partition in use is gone", step)
		}
		if b.tryPrepare("b", b.name(0, 19, 5)) == nil {
			t.Errorf("%s: a place in use was given", step)
		}
	}
	check("after Unprepare")
	b.Recover(t.Context())
	check("after Recover")
	b.Reconcile(t.Context(), &fakeAPI{})
	check("after Reconcile")
	b = b.restart()
	check("after a restart")
	must(t, b.node.Clients().Remove(0, 4711))
	b.unprepare("a")
	b.want(nil, nil, nil)
	b.wantOccupied()
	b.prepare("b", b.name(0, 19, 5))
}

func TestPrepare_PartitionDestroyedByOthers(t *testing.T) {
	for _, half := range []bool{true, false} {
		b := newSimBed(t, "hgx-h100")
		device := b.prepare("a", b.name(0, 9, 4))[0]
		g := b.session.Node().GPUs[0]
		part := *device.Partition
		if half {
			gi, err := b.node.Device(0).MIG().GPUInstanceByID(part.GI)
			must(t, err)
			ci, err := gi.ComputeInstanceByID(*part.CI)
			must(t, err)
			must(t, ci.Destroy())
		} else if err := b.session.DestroyPartition(t.Context(), g.PCI, part); err != nil {
			t.Fatal(err)
		}
		b.Recover(t.Context())
		b.prepare("a", b.name(0, 9, 4))
		b.want(list("0 9@4"), list("a"), list("a"))
		must(t, b.session.DestroyPartition(t.Context(), g.PCI, part))
		b.unprepare("a")
		b.want(nil, nil, nil)
	}
}

// A driver that does not answer for a moment says nothing about the partition that a pod is running in.
func TestPrepare_RepeatedAndFails(t *testing.T) {
	calls := []string{
		"nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo",
		"nvmlGpuInstanceGetComputeInstances", "nvmlComputeInstanceGetInfo_v2", "nvmlDeviceGetUUID",
	}
	for _, call := range calls {
		for nth := 1; nth <= 12; nth++ {
			b := newSimBed(t, "hgx-h100")
			b.prepare("a", b.name(0, 9, 4))
			must(t, b.node.Faults().FailNth(call, nth, sim.CodeUnknown))
			b.node.Calls().Reset()
			err := b.tryPrepare("a", b.name(0, 9, 4))
			if n := b.node.Calls().Of("nvmlGpuInstanceDestroy") + b.node.Calls().Of("nvmlComputeInstanceDestroy"); n > 0 {
				t.Errorf("call %d of %s failed: %d instances of a running claim were destroyed (Prepare said %v)", nth, call, n, err)
				break
			}
		}
	}
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 9, 4))
	must(t, b.specs.RemoveClaim("a"))
	b.specs.fail = os.ErrPermission
	b.node.Calls().Reset()
	wantError(t, b.tryPrepare("a", b.name(0, 9, 4)))
	if n := b.node.Calls().Of("nvmlGpuInstanceDestroy"); n > 0 {
		t.Errorf("the spec cannot be written: %d instances of a running claim were destroyed", n)
	}
}

func TestLoad_PartitionsAfterReboot(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 9, 4), b.name(1, 19, 2))
	b.prepare("b", b.name(2))
	must(t, b.node.Driver().Reboot())
	b = b.restart(inBoot("boot-next"))
	b.want(nil, nil, nil)
	b.prepare("a", b.name(0, 9, 4), b.name(1, 19, 2))
	b.want(list("0 9@4", "1 19@2"), list("a"), list("a"))
	b.unprepare("b")
	b.unprepare("a")
	b.want(nil, nil, nil)
}

func TestReconcile_CorruptRecordOfPartition(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	claim := deviceClaim("a", b.name(0, 9, 4), b.name(1, 19, 2))
	before := mustPrepare(t, b.Preparer, claim)
	b.hold(before[0], 4711) // its pod runs
	spoil(t, b.dir, "a")
	b = b.restart()
	if len(b.notes) != 1 {
		t.Errorf("got notes %v, want one about the corrupt record", b.notes)
	}
	b = b.restart()                                   // before anybody has asked the API server
	wantError(t, b.tryPrepare("b", b.name(0, 19, 5))) // the partition of claim a lies there
	b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claim)})
	b.want(list("0 9@4", "1 19@2"), list("a"), list("a"))
	equal(t, "devices", before, mustPrepare(t, b.Preparer, claim))
	b.wantOccupied()
	must(t, b.node.Clients().Remove(0, 4711))
	b.unprepare("a")
	b.want(nil, nil, nil)
}

// Taking over a partition in which a pod may run must not put it at risk: it was there before the engine touched it.
func TestReconcile_TakeoverFails(t *testing.T) {
	for failing := range 4 {
		b := newSimBed(t, "hgx-h100")
		claim := deviceClaim("a", b.name(0, 9, 4))
		mustPrepare(t, b.Preparer, claim)
		spoil(t, b.dir, "a")
		b = b.restart()
		api := &fakeAPI{claims: claimList(claim)}
		b.disk.fail = (&failingSteps{left: failing, all: true}).writes
		b.node.Calls().Reset()
		b.Reconcile(t.Context(), api)
		b.disk.fail = nil
		b.Recover(t.Context())
		b.Reconcile(t.Context(), api)
		b.want(list("0 9@4"), list("a"), list("a"))
		if n := b.node.Calls().Of("nvmlGpuInstanceDestroy"); n > 0 {
			t.Errorf("write %d and all after it failed: the partition of a running pod was destroyed", failing)
		}
	}
}

func TestRecover_SpecDeleted(t *testing.T) {
	var restored []string
	b := openSimBed(t, t.TempDir(), newSimNode(t, "hgx-h100"), func(o *Options) {
		o.OnSpecRestored = func(_ context.Context, claim records.Claim) { restored = append(restored, string(claim.UID)) }
	})
	b.prepare("a", b.name(0, 9, 4))
	b.Recover(t.Context())
	if LackSpecs(b.Preparer) || restored != nil {
		t.Fatalf("a spec is missing, or was: %v", restored)
	}
	must(t, b.specs.RemoveClaim("a"))
	if !LackSpecs(b.Preparer) {
		t.Error("the spec is not missed")
	}
	b.Recover(t.Context())
	if diff := cmp.Diff(list("a"), restored); diff != "" || LackSpecs(b.Preparer) {
		t.Errorf("the spec is missing: %t; reported (-want +got):\n%s", LackSpecs(b.Preparer), diff)
	}
	b.unprepare("a")
	if LackSpecs(b.Preparer) {
		t.Error("the spec of a claim that has ended is missed")
	}
}

// An agent that has a partition open keeps it, though NVML lists no process: it is named.
func TestUnprepare_PartitionHeldByAgent(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	var looked []string
	b.holders = func(_ context.Context, g *gpu.GPU, part *gpu.Partition) ([]Holder, error) {
		if part == nil {
			return []Holder{{1, "dcgm-exporter", ""}}, nil
		}
		looked = append(looked, b.name(g.Index, part.ProfileID, part.Placement.Start))
		return []Holder{{4711, "nv-hostengine", "pod-uid"}}, nil
	}
	b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
	part := b.prepare("a", b.name(0, 9, 4))[0].Partition
	b.hold(b.prepare("b", b.name(0, 9, 0))[0], 9) // NVML lists the programs of all partitions
	agent := sim.Client{PID: 4711, Name: "nv-hostengine", GPUInstance: part.GI, ComputeInstance: -1, Leaked: true}
	must(t, b.node.Clients().Add(0, agent))
	wantError(t, b.Unprepare(t.Context(), refOf(deviceClaim("a"))), b.name(0, 9, 4), "open in nv-hostengine (process 4711, pod pod-uid)", "restart it")
	equal(t, "partitions that were looked at", []string{b.name(0, 9, 4)}, looked)
	must(t, b.node.Clients().Remove(0, agent.PID))
	b.unprepare("a")
}
