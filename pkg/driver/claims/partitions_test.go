// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim"
)

func TestPartition_CreatedAndDestroyed(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	device := b.name(0, 19, 6)
	got := b.prepare("a", device)
	b.want(list("0 19@6"), list("a"), list("a"))
	g := b.session.Node().GPUs[0]
	ci := 0
	parts, err := b.session.Partitions(t.Context(), &g)
	if err != nil || len(parts) != 1 {
		t.Fatalf("got partitions %v, %v, want one", parts, err)
	}
	want := []records.Device{{
		Request: "r", Pool: testPool, Device: device, GPU: b.name(0), UUID: g.UUID,
		Partition:    &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}, GI: parts[0].GI, CI: &ci, UUID: parts[0].UUID},
		CDIDeviceIDs: []string{testDriver + "/gpu=" + b.name(0) + "-mig", testDriver + "/claim=a-" + device},
	}}
	equal(t, "devices", want, got)
	equal(t, "devices of the same Prepare again", want, b.prepare("a", device))
	b.unprepare("a")
	b.want(nil, nil, nil)
	b.unprepare("a")
	b.want(nil, nil, nil)
	equal(t, "GPUs in MIG mode after the last partition", []int{0}, b.modes())
}

func TestPartition_SeveralClaims(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	for i := range 7 {
		b.prepare(uidOf(i), b.name(0, 19, i))
	}
	b.unprepare(uidOf(3))
	b.want(list("0 19@0", "0 19@1", "0 19@2", "0 19@4", "0 19@5", "0 19@6"), list("p0", "p1", "p2", "p4", "p5", "p6"),
		list("p0", "p1", "p2", "p4", "p5", "p6"))
	b.prepare("again", b.name(0, 20, 3))
	b.unprepare(uidOf(0))
	if !slices.Contains(b.instances(), "0 20@3") {
		t.Errorf("got instances %v, want 1g+me at 3 among them", b.instances())
	}
}

// Profiles with all of the media engines, none, or graphics are created like others. The board refuses what the counters exclude.
func TestPartition_Variants(t *testing.T) {
	b := newSimBed(t, "rtx-pro-6000")
	b.offers[0].Partitions = &policy.PartitionOffer{Mode: policy.OnDemand, Profiles: []int{14, 47, 65, 67}}
	b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
	b.prepare("all", b.name(0, 65, 9))
	b.prepare("none", b.name(0, 67, 6))
	for _, device := range []string{b.name(0, 14, 3), b.name(0, 47, 0)} {
		wantError(t, b.tryPrepare("some", device))
	}
	b.unprepare("all")
	b.prepare("graphics", b.name(0, 47, 9))
	b.want(list("0 47@9", "0 67@6"), list("graphics", "none"), list("graphics", "none"))
}

// uidOf is the UID of the i-th claim.
func uidOf(i int) types.UID { return types.UID(fmt.Sprintf("p%d", i)) }

func TestPartition_MIGModeFollows(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("part", b.name(0, 9, 4))
	b.prepare("whole", b.name(1))
	equal(t, "GPUs in MIG mode", []int{0}, b.modes())
	wantError(t, b.tryPrepare("other", b.name(0)), "ns/claim-part")
	equal(t, "GPUs in MIG mode after the refusal", []int{0}, b.modes())
	wantError(t, b.tryPrepare("other", b.name(1, 9, 4)), "ns/claim-whole")
	b.unprepare("part")
	b.unprepare("whole")
	b.prepare("whole", b.name(0))
	b.prepare("part", b.name(1, 0, 0))
	equal(t, "GPUs in MIG mode after all changed", []int{1}, b.modes())
	b.want(list("1 0@0"), list("part", "whole"), list("part"))
}

func TestPartition_AllOrNone(t *testing.T) {
	calls := []string{
		"nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceGetInfo",
		"nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceCreateComputeInstance", "nvmlComputeInstanceGetInfo_v2",
	}
	layouts := map[string]func(b *simBed) []string{
		"one GPU":      func(b *simBed) []string { return list(b.name(0, 15, 0), b.name(0, 19, 4), b.name(0, 20, 6)) },
		"three GPUs":   func(b *simBed) []string { return list(b.name(2, 9, 4), b.name(0, 19, 6), b.name(1, 14, 2)) },
		"mixed shapes": func(b *simBed) []string { return list(b.name(1), b.name(0, 19, 6), b.name(0, 19, 5), b.name(0, 20, 4)) },
	}
	for name, layout := range layouts {
		for _, call := range calls {
			for nth := 1; ; nth++ {
				b := newSimBed(t, "hgx-h100")
				b.prepare("bystander", b.name(0, 19, 3))
				devices := layout(b)
				must(t, b.node.Faults().FailNth(call, nth, sim.CodeUnknown))
				err := b.tryPrepare("a", devices...)
				if err == nil { // fewer calls than that
					break
				}
				b.want(list("0 19@3"), list("bystander"), list("bystander"))
				if t.Failed() {
					t.Fatalf("%s, call %d of %s failed: see above (%v)", name, nth, call, err)
				}
				if err := b.tryPrepare("a", devices...); err != nil {
					t.Errorf("%s, call %d of %s failed: Prepare again: %v", name, nth, call, err)
				}
				b.unprepare("a")
				b.want(list("0 19@3"), list("bystander"), list("bystander"))
			}
		}
	}
}

func TestPartition_WriteFails(t *testing.T) {
	for failing := 0; ; failing++ {
		b := newSimBed(t, "hgx-h100")
		steps := &failingSteps{left: failing}
		b.disk.fail = steps.writes
		err := b.tryPrepare("a", b.name(0, 19, 6), b.name(1, 9, 4))
		if steps.failed == "" {
			must(t, err)
			break
		}
		if err == nil {
			t.Errorf("write %d failed: Prepare said success", failing)
		}
		b.want(nil, nil, nil)
	}
	b := newSimBed(t, "hgx-h100")
	b.specs.fail = os.ErrPermission
	if err := b.tryPrepare("a", b.name(0, 19, 6)); !errors.Is(err, os.ErrPermission) {
		t.Errorf("the spec cannot be written: got %v", err)
	}
	b.want(nil, nil, nil)
}

// What was made and can be neither finished nor destroyed must stay on record, or nobody ever destroys it.
func TestPartition_UndoFails(t *testing.T) {
	tests := map[string][]string{
		"no compute instance":   {"nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceDestroy"},
		"unreadable":            {"nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceDestroy"},
		"unreadable GPU inst.":  {"nvmlGpuInstanceGetInfo", "nvmlGpuInstanceDestroy"},
		"unreadable, all stuck": {"nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"},
	}
	for name, calls := range tests {
		t.Run(name, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			for _, call := range calls {
				must(t, b.node.Faults().FailCall(call, sim.CodeUnknown))
			}
			wantError(t, b.tryPrepare("a", b.name(0, 19, 6)))
			if got := b.files("claims"); len(got) != 1 {
				t.Errorf("got records %v, want that of claim a: a GPU instance is left", got)
			}
			must(t, b.node.Faults().Clear(-1))
			b = b.restart()
			b.want(nil, nil, nil)
		})
	}
}
