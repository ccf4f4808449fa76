// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// listed has what is published arrive and settle, and the claims listed where a plan wants that.
func (b *bed) listed() {
	b.t.Helper()
	b.Arrived = true
	b.step(Publication)
	b.after(withdrawSettle)
	if b.plan.List.IsZero() {
		b.t.Error("the claims are not to be listed")
	}
	b.Listed = b.Now
	b.step(Listing)
}

// published reports of a device whether it is published, and whether it can be allocated.
func (b *bed) published(device string) (there, free bool) {
	for _, devices := range b.slices {
		for _, name := range devices {
			there, free = there || name == device || name == device+"!", free || name == device
		}
	}
	return there, free
}

func (b *bed) wantPublished(when, device string, there, free bool) {
	b.t.Helper()
	if isThere, isFree := b.published(device); isThere != there || isFree != free {
		b.t.Errorf("%s: %s is published %t, and free %t; want %t, %t", when, device, isThere, isFree, there, free)
	}
}

// partition19 is the partition 1g.10gb of an H100 at a start.
func partition19(device string, start int) records.Device {
	at := gpu.Place{ProfileID: 19, Placement: gpu.Placement{Start: start, Size: 1}}
	return records.Device{Device: at.DeviceName(device), GPU: device, Partition: &gpu.Partition{ProfileID: 19, Placement: at.Placement}}
}

// A claim was allocated a partition, and its pod waits for a volume, when the policy changes: the partition stays, with its taint,
// until a listing of claims shows who has it, and then as long as the claim is allocated it. However long nobody can ask.
func TestDesired_WithdrawnBeforePrepared(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.step(Inventory | Policies)
	mig := partition19(b.device(0), 6)
	b.wantPublished("before", mig.Device, true, true)
	b.rules("{mig: {layout: {3g.40gb: 2}}}")
	for _, when := range []string{"policy changed", "later", "much later"} {
		b.wantPublished(when, mig.Device, true, false)
		if b.plan.Layouts || !b.plan.List.IsZero() {
			t.Errorf("%s: layouts %t, list after %s; want nothing done before the slices have arrived", when, b.plan.Layouts, b.plan.List)
		}
		b.after(arriveAtMost / 3)
	}
	b.Arrived = true
	b.step(Publication)
	b.after(withdrawSettle - 1)
	if !b.plan.List.IsZero() {
		t.Error("the claims are to be listed before schedulers have seen the taint")
	}
	b.after(1)
	since := b.plan.List
	if !since.Equal(b.Now) {
		t.Fatalf("claims are to be listed after %s, want %s", since, b.Now)
	}
	b.Listed = since.Add(-1)
	b.after(time.Hour)
	b.wantPublished("listed too early", mig.Device, true, false)
	b.allocate(mig)
	b.Listed = since
	b.step(Listing | Allocations)
	b.wantPublished("listed, allocated", mig.Device, true, false)
	b.wantPublished("listed, not allocated", partition19(b.device(0), 5).Device, false, false)
	b.allocates()
	b.wantPublished("deallocated", mig.Device, false, false)
}

// An API server that drops taints never has the slices as they are wanted. One that is away may have them yet to come.
func TestDesired_WithdrawalNotSeenToArrive(t *testing.T) {
	b := newBed(t, "a30")
	b.step(Inventory | Policies)
	b.rules("{tiers: [timeSlice]}")
	b.ListFailed = b.Now.Add(arriveAtMost / 2)
	b.after(arriveAtMost)
	if got := b.plan.LookAgain.Sub(b.Now); got != arriveAtMost/2 || !b.Memory.Withdrawal.Since.IsZero() {
		t.Errorf("since %s, look again after %s; want never, and the rest of the time since the API server was away", b.Memory.Withdrawal.Since, got)
	}
	b.after(arriveAtMost / 2)
	b.after(withdrawSettle)
	if b.plan.List.IsZero() {
		t.Error("the claims are not to be listed")
	}
	b.ListFailed = b.Now
	b.after(time.Second)
	if !b.plan.List.IsZero() || b.plan.LookAgain.Sub(b.Now) != arriveAtMost-time.Second {
		t.Errorf("list %s, look again after %s; want the slices waited for again", b.plan.List, b.plan.LookAgain.Sub(b.Now))
	}
}

// Slices are written one after another, each slowly: as long as one is to come, nobody has seen its taint. What is written later changes
// something else.
func TestDesired_WithdrawalWrittenSlowly(t *testing.T) {
	b := newBed(t, "a30")
	b.step(Inventory | Policies)
	b.rules("{tiers: [timeSlice]}")
	b.WriteFailed = b.Now.Add(-time.Hour) // a success without loss of fields is not noted
	for _, pause := range []time.Duration{arriveAtMost, arriveAtMost, arriveAtMost - 1} {
		b.Writing, b.Written = pause == arriveAtMost, b.Now
		b.after(pause)
		if got := b.plan.LookAgain.Sub(b.Now); got <= 0 || !b.Memory.Withdrawal.Since.IsZero() {
			t.Errorf("since %s, look again after %s; want the slices waited for", b.Memory.Withdrawal.Since, got)
		}
	}
	b.Writing, b.Written = true, b.Now
	b.after(1)
	if !b.Memory.Withdrawal.Since.Equal(b.Now) {
		t.Errorf("since %s, want %s", b.Memory.Withdrawal.Since, b.Now)
	}
}

// Slices are refused, at first often and then less and less often: as long as a write is to come, nobody has seen the taint.
func TestDesired_WithdrawalRefused(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.step(Inventory | Policies)
	b.rules("{mig: {layout: {3g.40gb: 2}}}")
	mig := partition19(b.device(0), 6)
	for _, pause := range []time.Duration{time.Second, arriveAtMost, 2 * arriveAtMost, rewriteAtMost, rewriteAtMost} {
		b.after(pause)
		b.WriteFailed = b.Now
		b.after(0)
		b.wantPublished("refused", mig.Device, true, false)
		if b.plan.Layouts || !b.plan.List.IsZero() {
			t.Errorf("layouts %t, list after %s; want nothing done before the slices have arrived", b.plan.Layouts, b.plan.List)
		}
	}
	b.WriteFailed = time.Time{} // it came to be, without its taints
	b.step(Publication)
	b.after(withdrawSettle)
	if b.plan.List.IsZero() {
		t.Fatal("the claims are not to be listed")
	}
	b.WriteFailed = b.Now
	b.after(time.Second)
	if !b.plan.List.IsZero() || b.plan.LookAgain.Sub(b.Now) != rewriteAtMost+arriveAtMost-time.Second {
		t.Errorf("list %s, look again after %s; want the slices waited for again", b.plan.List, b.plan.LookAgain.Sub(b.Now))
	}
}

// Nothing is published before it is known what is allocated, and what was published stays.
func TestDesired_Unlisted(t *testing.T) {
	b := newBed(t, "a30")
	b.Unlisted = true
	b.step(Inventory | Policies)
	b.after(time.Hour)
	if b.slices != nil || b.plan.Offer == nil {
		t.Errorf("published %v, offer %v; want nothing published, and claims prepared", b.slices, b.plan.Offer)
	}
	b.Unlisted = false
	b.step(Listing)
	if b.slices == nil {
		t.Error("nothing is published")
	}
}

// A layout was fitted around partitions of claims. It stays where it is when those end, and after a reboot, of which only the
// record of the layout is left: claims may have been allocated its devices.
func TestDesired_LayoutStays(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.write("default.yaml", "rules: [{tiers: [mig], mig: {layout: {1g.10gb: 2}}}]")
	const low, high = 3, 4
	check := func(when string) {
		t.Helper()
		for start, want := range map[int]bool{low: true, high: true, 5: false, 6: false} {
			b.wantPublished(when, partition19(b.device(0), start).Device, want, want)
		}
	}
	b.allocate(partition19(b.device(0), low), partition19(b.device(0), high))
	b.step(Inventory | Policies)
	check("around claims")
	b.allocates()
	check("claims ended")
	b.Memory, b.slices = Memory{Active: b.Memory.Active}, nil
	places := b.plan.Offer.Offers[0].Partitions.Places
	b.Layouts = map[gpu.PCIAddress][]gpu.Place{b.Inventory.GPUs[0].PCI: places}
	b.step(Inventory | Policies)
	check("after a reboot")
}

// The policy that is kept for a restart is the one that still offers what is being withdrawn.
func TestDesired_PolicyKeptAfterWithdrawal(t *testing.T) {
	b := newBed(t, "a30")
	b.rules("{tiers: [exclusive]}")
	b.write("default.yaml", "rules: [{tiers: [timeSlice]}]")
	if b.step(Policies); b.plan.Keep != nil {
		t.Error("the new policy is kept though devices of the old one are being withdrawn")
	}
	b.listed()
	if b.plan.Keep == nil {
		t.Error("the new policy is not kept")
	}
}

// restart has the plugin begin anew with the slices that it has published, and the policy that it has kept.
func (b *bed) restart() {
	b.Memory, b.Before, b.Arrived, b.Listed = Memory{Active: b.Memory.Active}, nil, false, b.Now
	for _, devices := range b.slices {
		for _, name := range devices {
			b.Before = append(b.Before, strings.TrimSuffix(name, "!"))
		}
	}
	b.slices = nil
}

// A plugin starts again and can offer less than it has published. A claim may have been allocated that since its first listing.
func TestDesired_RestartOffersLess(t *testing.T) {
	const all = "rules: [{tiers: [exclusive, mig, timeSlice, mps]}]"
	for name, test := range map[string]struct {
		change func(b *bed)
		device func(b *bed) string
	}{
		"supervisor away": {func(b *bed) { b.MPS = errors.New("away") }, func(b *bed) string { return b.device(0) + "-mps" }},
		"counters gate off": {func(b *bed) { b.Counted = counting.Counted{Counters: errors.New("off")} },
			func(b *bed) string { return partition19(b.device(0), 6).Device }},
		"shares gate off": {func(b *bed) { b.Counted = counting.Counted{Shares: errors.New("off")} },
			func(b *bed) string { return b.device(0) + "-timeslice" }},
		"shares not counted": {func(b *bed) { b.Counted = counting.Counted{SharesBeside: errors.New("1.36.1")} },
			func(b *bed) string { return b.device(0) + "-timeslice" }},
		"other policy, supervisor away": {func(b *bed) {
			b.write("default.yaml", "rules: [{tiers: [exclusive]}]")
			b.MPS = errors.New("away")
		}, func(b *bed) string { return b.device(0) + "-mps" }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "hgx-h100")
			b.write("default.yaml", all)
			b.step(Inventory | Policies)
			d := test.device(b)
			b.wantPublished("before", d, true, true)
			b.restart()
			test.change(b)
			b.step(Inventory | Policies)
			b.wantPublished("first publication", d, true, false)
			b.listed()
			b.wantPublished("listed", d, false, false)
			b.restart()
			b.step(Inventory | Policies)
			b.wantPublished("once more", d, false, false)
			if b.Memory.Previous != nil {
				t.Error("a restart that offers what is published withdraws something")
			}
		})
	}
}

// A node without slices has published nothing that could be withdrawn, as one that starts for the first time.
func TestDesired_RestartWithoutSlices(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.rules("{tiers: [exclusive, mps]}")
	b.slices = nil
	b.restart()
	b.MPS = errors.New("away")
	b.step(Inventory | Policies)
	b.wantPublished("first publication", b.device(0), true, true)
	b.wantPublished("first publication", b.device(0)+"-mps", false, false)
	if b.Memory.Previous != nil {
		t.Error("something is withdrawn")
	}
}

// A conflict hides devices as a policy withdraws them: first tainted, and gone once no claim has them.
func TestDesired_ConflictHidesAfterListing(t *testing.T) {
	b := newBed(t, "a30")
	b.step(Inventory | Policies)
	b.Names = []DriverName{{Driver: "gpu.example.com"}}
	b.step(Names)
	b.wantPublished("conflict", b.device(0), true, false)
	b.allocate(records.Device{GPU: b.device(0)})
	b.listed()
	b.wantPublished("listed, allocated", b.device(0), true, false)
	if diff := cmp.Diff(b.every(0), b.tainted(nodeslices.TaintConflict)); diff != "" {
		t.Errorf("tainted (-want +got):\n%s", diff)
	}
	b.wantPublished("listed, not allocated", b.device(1), false, false)
	b.Names = nil
	b.step(Names)
	b.wantPublished("resolved", b.device(1), true, true)
}
