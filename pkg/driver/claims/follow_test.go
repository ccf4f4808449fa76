// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// wantAllocated compares the claims that something is known to be allocated to.
func wantAllocated(t *testing.T, when string, l *Ledger, want ...string) {
	t.Helper()
	var got []string
	for _, r := range l.Allocations() {
		got = append(got, string(r.Claim.UID))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: allocated to %v, want %v", when, got, want)
	}
}

// What is allocated is what the API server says: unprepared claims, and those whose records went with a boot or with Unprepare
// while their devices are offered for them alone.
func TestFollower(t *testing.T) {
	b := newPartBed(t)
	now, elsewhere := time.Now(), deviceClaim("elsewhere", b.name(0))
	elsewhere.Status.Allocation.Devices.Results[0].Pool = "node-2"
	unprepared := deviceClaim("unprepared", b.name(0, 19, 6))
	api := &fakeAPI{claims: []*resourceapi.ResourceClaim{unprepared, elsewhere}}
	node := func() *gpu.Node { return b.backend.Load().hardware.Node().Node }
	f := NewFollower(b.Ledger, api, node)
	follow := func(after time.Duration) time.Duration {
		t.Helper()
		now = now.Add(after)
		again, err := f.Follow(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		if again.IsZero() {
			return 0
		}
		return again.Sub(now)
	}
	wantAllocated(t, "not listed", b.Ledger)
	must(t, f.List(t.Context()))
	wantAllocated(t, "listed", b.Ledger, "unprepared")
	if at := b.Ledger.Unrecorded()[0].Devices[0].Partition; at == nil || at.Placement.Start != 6 {
		t.Errorf("the partition is at %+v, want start 6", at)
	}
	for _, want := range []time.Duration{followFirst, 2 * followFirst, 4 * followFirst} {
		if got := follow(want); got != want && want != followFirst {
			t.Errorf("asks again after %s, want %s", got, want)
		}
	}
	api.err = errors.New("away")
	if _, err := f.Follow(t.Context(), now.Add(time.Hour)); err == nil || f.List(t.Context()) == nil {
		t.Error("got no error of an API server that is away")
	}
	wantAllocated(t, "API server away", b.Ledger, "unprepared")
	api.err, api.claims = nil, nil
	follow(2 * time.Hour)
	wantAllocated(t, "deleted", b.Ledger)
}

// One question fails, and the claims that were not asked for then are soon.
func TestFollower_QuestionFails(t *testing.T) {
	b := newPartBed(t)
	api := &fakeAPI{claims: claimList(deviceClaim("a", b.name(0)), deviceClaim("b", b.name(1)))}
	f := NewFollower(b.Ledger, api, func() *gpu.Node { return b.session.Node() })
	must(t, f.List(t.Context()))
	asked := 0
	api.meanwhile = func(context.Context, string) error {
		if asked++; asked > 1 {
			return nil
		}
		return errors.New("too many requests")
	}
	now := time.Now()
	if again, err := f.Follow(t.Context(), now); err == nil || !again.Equal(now.Add(followFirst)) {
		t.Errorf("asks again after %s (%v), want %s", again.Sub(now), err, followFirst)
	}
}

// While claims are listed, one that the listing does not have is allocated again what it had: it stays known.
func TestFollower_NotedDuringListing(t *testing.T) {
	b := newPartBed(t)
	node := b.backend.Load().hardware.Node()
	node.Offers[0] = policy.Offer{Whole: true}
	claim := deviceClaim("again", b.name(0, 19, 6))
	prepare := func() { wantRefused(t, b.Preparer, claim, "is not on this node") }
	api := &fakeAPI{meanwhile: func(context.Context, string) error { prepare(); return nil }}
	f := NewFollower(b.Ledger, api, func() *gpu.Node { return node.Node })
	prepare()
	wantAllocated(t, "before", b.Ledger, "again")
	must(t, f.List(t.Context()))
	wantAllocated(t, "noted during the listing", b.Ledger, "again")
	api.meanwhile = nil
	must(t, f.List(t.Context()))
	wantAllocated(t, "listed since", b.Ledger)
}

// A claim's device is withdrawn, its pod ends, and the claim is still allocated: until it is not, the device is taken.
func TestUnprepare_StillAllocated(t *testing.T) {
	b := newPartBed(t)
	node := b.backend.Load().hardware.Node()
	f := NewFollower(b.Ledger, &fakeAPI{}, func() *gpu.Node { return node.Node })
	whole := func(uid types.UID, i int) *resourceapi.ResourceClaim { return deviceClaim(uid, b.name(i)) }
	mustPrepare(t, b.Preparer, whole("withdrawn", 0))
	mustPrepare(t, b.Preparer, whole("offered", 1))
	node.Offers[0].Withdrawn.Whole = true
	mustUnprepare(t, b.Preparer, whole("withdrawn", 0))
	mustUnprepare(t, b.Preparer, whole("offered", 1))
	wantAllocated(t, "unprepared", b.Ledger, "withdrawn")
	if _, err := f.Follow(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	wantAllocated(t, "gone from the API server", b.Ledger)
}

// After a reboot no record is left, and claims are allocated what they had.
func TestLoad_EarlierBootStaysAllocated(t *testing.T) {
	b := newPartBed(t)
	b.prepare("share", b.mps())
	b.prepare("part", b.name(1, 19, 6))
	now := records.AllocatedOf(b.Ledger.Allocations())
	again := New(Options{Identity: testID, BootID: "the next", Store: b.Ledger.store, Locks: b.Ledger.locks, Specs: b.specs.under})
	NewFollower(again.Ledger, &fakeAPI{}, nil)
	if err := again.Load(t.Context(), nil); err != nil || len(again.Ledger.Records()) > 0 {
		t.Errorf("got %v, and records %v have outlived the boot", err, again.Ledger.Records())
	}
	wantAllocated(t, "after a reboot", again.Ledger, "part", "share")
	for i := range 2 {
		g := &b.backend.Load().hardware.Node().GPUs[i]
		if was, is := now(g), records.AllocatedOf(again.Ledger.Allocations())(g); !slices.Equal(was.AllPlaces(), is.AllPlaces()) || len(is.AllPlaces()) != 1 {
			t.Errorf("GPU %d: allocated %+v, want what was before: %+v", i, is, was)
		}
	}
}

// A scheduler that had not seen the taint yet allocated a device that is gone: it is offered for the claim from then on.
func TestPrepare_NotOffered(t *testing.T) {
	b := newPartBed(t)
	node := b.backend.Load().hardware.Node()
	NewFollower(b.Ledger, &fakeAPI{}, nil)
	node.Offers[0] = policy.Offer{Whole: true}
	gone, none := deviceClaim("gone", b.name(0, 19, 6)), deviceClaim("none", b.name(0)+"-mig-99-0")
	for _, c := range []*resourceapi.ResourceClaim{gone, none} {
		wantRefused(t, b.Preparer, c, "is not on this node")
	}
	wantAllocated(t, "not offered", b.Ledger, "gone")
	allocated := records.AllocatedOf(b.Ledger.Allocations())(&node.GPUs[0])
	node.Offers[0].Partitions = policy.NoPlaces(allocated.Places)
	mustPrepare(t, b.Preparer, gone)
}

// A claim that observes a device is prepared, and again, whether or not the policy has the device.
func TestPrepare_AdminAccessNotOffered(t *testing.T) {
	b := newPartBed(t)
	node := b.backend.Load().hardware.Node()
	b.prepare("tenant", b.name(1, 19, 6))
	for range 2 {
		b.prepare("whole", admin(b.name(0)))
		b.prepare("part", admin(b.name(1, 19, 6)))
		node.Offers[0], node.Offers[1] = policy.Offer{TimeSlice: &policy.Sharing{}}, policy.Offer{Whole: true}
	}
	b.prepare("later", admin(b.name(0)))
	wantError(t, b.tryPrepare("none", admin(b.name(0)+"-mig-99-0")), "is not on this node")
	wantError(t, b.tryPrepare("elsewhere", admin("gpu-0000-ff-00-0")), "is not on this node")
}

// No layout is created on top of what is allocated, but for a claim that was allocated just that.
func TestKeepLayouts_Allocated(t *testing.T) {
	b := newPartBed(t)
	f := NewFollower(b.Ledger, &fakeAPI{claims: []*resourceapi.ResourceClaim{
		deviceClaim("other", b.name(0, 14, 4)), deviceClaim("same", b.name(0, 19, 2)),
	}}, func() *gpu.Node { return b.backend.Load().hardware.Node().Node })
	must(t, f.List(t.Context()))
	layout := cutInto(place(19, 2, 1), place(19, 3, 1), place(19, 4, 1))
	b.backend.Load().hardware.Node().Offers[0].Partitions = layout
	b.kept()
	g := &b.backend.Load().hardware.Node().GPUs[0]
	if got := b.Partitions.Unclaimed(g); !slices.Equal(got, layout.Places[:2]) {
		t.Errorf("the layout has %v, want all but start 4", got)
	}
	b = b.restart(inBoot("the next"))
	if got := b.Partitions.LayoutPlaces(g); !slices.Equal(got, layout.Places) || b.Ledger.layout(b.name(0)) != nil {
		t.Errorf("after a reboot the layout was at %v, and exists %v; want all three, and none", got, b.Ledger.layout(b.name(0)))
	}
}

// The policy comes to offer less while claims have their shares: those are prepared again, also after a reboot.
func TestPrepare_ShareOfAnEarlierPolicy(t *testing.T) {
	b := newBed(t)
	b.prepare("a", sliceOf(1, 40))
	b.prepare("b", sliceOf(1, 40))
	b.hardware.node.Offers[1].TimeSlice.Memory = policy.NewCut(60*gi, 4, gi, gi)
	if err := b.tryPrepare("a", sliceOf(1, 40)); err != nil {
		t.Errorf("with its record: %v", err)
	}
	wantError(t, b.tryPrepare("c", sliceOf(1, 10)), "would take memory")
	b.die()
	again := openBed(t, b.dir, inBoot("the next"))
	again.Ledger.allocated.followed, again.hardware.node = true, b.hardware.node
	again.start()
	for _, uid := range []types.UID{"b", "a"} {
		if err := again.tryPrepare(uid, sliceOf(1, 40)); err != nil {
			t.Errorf("%s after a reboot: %v", uid, err)
		}
	}
}

// Of a claim that was allocated by an earlier policy the scheduler counted the shares, with those that were allocated then; not those of
// a pod that was deleted by force, whose containers still run.
func TestPrepare_ShareOfAnEarlierPolicyWaits(t *testing.T) {
	sized := func(uid types.UID, memory string) *resourceapi.ResourceClaim {
		return claimOf(uid, shareResult("r", 0, gpu.TimeSlice, "shares=1", "memory="+memory))
	}
	share := func(uid types.UID) *resourceapi.ResourceClaim { return sized(uid, "25Gi") }
	next := sized("next", "40Gi")
	for name, tt := range map[string]struct {
		left []*resourceapi.ResourceClaim
		down error
		took time.Duration
		err  string
	}{
		"none is leaving":        {claimList(share("a"), share("b"), share("c")), nil, 0, ""},
		"one is leaving":         {claimList(share("b"), share("c")), nil, time.Second, ""},
		"one of two stays":       {claimList(share("c")), nil, releaseTimeout, "would take memory"},
		"the API server is away": {nil, errDown, 0, "would take memory"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.api = &fakeAPI{claims: append(claimList(next), tt.left...), err: tt.down}
				for _, uid := range []types.UID{"a", "b", "c"} {
					mustPrepare(t, b.Preparer, share(uid))
				}
				b.Ledger.allocated.followed = true
				b.Ledger.allocated.enter(allocation(next, b.hardware.node.Node, b.id))
				defer after(time.Second, func() { mustUnprepare(t, b.Preparer, share("a")) })()
				took, err := prepareIn(t, b.Preparer, next)
				if took != tt.took || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v after %s, want error %q after %s", err, took, tt.err, tt.took)
				}
			})
		})
	}
}

// A newer plugin learns of what the one that it replaces has prepared after it had read the records, and has unprepared.
func TestReconcile_LearnsOfRecords(t *testing.T) {
	older, newer := twoBeds(t)
	mustPrepare(t, older.Preparer, claimOn("a", 1))
	api := &fakeAPI{claims: claimList(claimOn("a", 1))}
	newer.Reconcile(t.Context(), api)
	wantAllocated(t, "prepared by the older plugin", newer.Ledger, "a")
	mustUnprepare(t, older.Preparer, claimOn("a", 1))
	newer.Reconcile(t.Context(), api)
	wantAllocated(t, "unprepared by it", newer.Ledger)
}
