// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// after runs something at a time of the test's own clock; wait returns once it has run.
func after(d time.Duration, run func()) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		<-time.After(d)
		run()
	})
	return wg.Wait
}

// prepareIn prepares a claim and says how long that took.
func prepareIn(t *testing.T, e *Preparer, claim *resourceapi.ResourceClaim) (time.Duration, error) {
	t.Helper()
	start := time.Now()
	_, err := e.Prepare(t.Context(), claim)
	return time.Since(start), err
}

func TestPrepare_HolderLeaves(t *testing.T) {
	held, next := claimOn("a", 1), claimOn("b", 1)
	unprepared := func(t *testing.T, b *bed) func() {
		return after(2*time.Second, func() { mustUnprepare(t, b.Preparer, held) })
	}
	for name, tt := range map[string]struct {
		api     *fakeAPI
		release func(t *testing.T, b *bed) (wait func())
		took    time.Duration
		err     string // empty where it is prepared
	}{
		"deleted":             {&fakeAPI{claims: claimList(next)}, unprepared, 2 * time.Second, ""},
		"deallocated":         {&fakeAPI{claims: claimList(next, deallocated(held))}, unprepared, 2 * time.Second, ""},
		"another of its name": {&fakeAPI{claims: claimList(next, otherUID(held))}, unprepared, 2 * time.Second, ""},
		"allocated elsewhere": {&fakeAPI{claims: claimList(next, inPool(held, "node-2"))}, unprepared, 2 * time.Second, ""},
		"allocated":           {&fakeAPI{claims: claimList(next, held)}, unprepared, 0, "is allocated to claim"},
		"allocated, no pods":  {&fakeAPI{claims: claimList(next, unreserved(held))}, unprepared, 0, "is allocated to claim"},
		"API server away":     {&fakeAPI{err: errors.New("connection refused")}, unprepared, 0, "is allocated to claim"},
		"never unprepared":    {&fakeAPI{claims: claimList(next)}, func(*testing.T, *bed) func() { return func() {} }, releaseTimeout, "timed out after 15s"},
		"driver is released": {&fakeAPI{claims: claimList(next)}, func(_ *testing.T, b *bed) func() {
			return after(3*time.Second+time.Millisecond, func() { b.SetWaiting(gpu.ErrDriverNotLoaded); b.Quiesce() })
		}, 4 * time.Second, "cannot be used yet"},
		"waiting claim is deleted":        {&fakeAPI{}, unprepared, time.Second, "deleted or allocated again"},
		"waiting claim is allocated anew": {&fakeAPI{claims: claimList(claimOn("b", 2))}, unprepared, time.Second, "deleted or allocated again"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.api = tt.api
				mustPrepare(t, b.Preparer, held)
				defer tt.release(t, b)()
				took, err := prepareIn(t, b.Preparer, next)
				if took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				switch {
				case tt.err == "" && err != nil, tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
					t.Errorf("got error %v, want %q", err, tt.err)
				case took >= releaseTimeout && !strings.Contains(err.Error(), refOf(held).String()):
					t.Errorf("got error %v, want it to name claim %s", err, refOf(held))
				}
				if err == nil {
					wantDisk(t, b, line("b", 1))
				}
			})
		})
	}
}

// Nobody who needs a GPU waits behind one who waits for a release.
func TestPrepare_WaitsWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.api = &fakeAPI{}
		mustPrepare(t, b.Preparer, claimOn("a", 1))
		ctx, cancel := context.WithCancel(t.Context())
		done := prepareLater(ctx, b.Preparer, claimOn("b", 1, 2))
		synctest.Wait()
		start := time.Now()
		mustPrepare(t, b.Preparer, claimOn("c", 2))
		mustPrepare(t, b.Preparer, claimOf("watch", adminResult("all", 1)))
		b.Quiesce()
		if took := time.Since(start); took != 0 {
			t.Errorf("claims on the same GPUs waited %s", took)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
			t.Errorf("got %v after %s, want the call to end with its context", err, time.Since(start))
		}
	})
}

func TestPrepare_TwoClaimsWaitForOneDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		held := claimOn("a", 1)
		waiting := claimList(claimOn("b", 1), claimOn("c", 1))
		b.api = &fakeAPI{claims: waiting}
		mustPrepare(t, b.Preparer, held)
		defer after(2*time.Second, func() { mustUnprepare(t, b.Preparer, held) })()
		errs := make([]error, len(waiting))
		var wg sync.WaitGroup
		for i, claim := range waiting {
			wg.Go(func() { _, errs[i] = b.Prepare(t.Context(), claim) })
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("got %v, want one of them to be refused", errs)
		}
		if got := onDisk(t, b.dir); len(got) != 1 {
			t.Errorf("on record: %v, want one claim", got)
		}
	})
}

// A partition that was in use when its claim gave it back is destroyed once its process has ended, for who waits for it.
func TestPrepare_PartitionBeingReleased(t *testing.T) {
	for name, whole := range map[string]bool{"partition": false, "whole GPU": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSimBed(t, "hgx-h100")
				device := b.prepare("a", b.name(0, 9, 4))[0]
				b.prepare("other", b.name(0, 9, 0))
				b.hold(device, 4711)
				if err := b.Unprepare(t.Context(), refOf(deviceClaim("a"))); !errors.Is(err, gpu.ErrInUse) {
					t.Fatalf("got %v, want %v", err, gpu.ErrInUse)
				}
				next := deviceClaim("b", b.name(0, 19, 5))
				if whole {
					b.unprepare("other")
					next = deviceClaim("b", b.name(0))
				}
				b.api = &fakeAPI{claims: claimList(next)}
				changes := 0
				b.Ledger.changed = func() { changes++ }
				defer after(3500*time.Millisecond, func() {
					if err := b.node.Clients().Remove(0, 4711); err != nil {
						t.Error(err)
					}
				})()
				if took, err := prepareIn(t, b.Preparer, next); err != nil || took != 4*time.Second {
					t.Errorf("got %v after %s, want it prepared after 4s", err, took)
				}
				if changes == 0 {
					t.Error("no change was reported: the devices would stay tainted")
				}
			})
		})
	}
}

// A claim that needs the place of several gets it once all of them have gone, and at once not if one stays.
func TestPrepare_SeveralHoldersLeave(t *testing.T) {
	for name, stays := range map[string]bool{"all leave": false, "one stays": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newSimBed(t, "hgx-h100")
				b.prepare("a", b.name(0, 19, 0))
				b.prepare("c", b.name(0, 19, 1))
				next := deviceClaim("b", b.name(0))
				api := &fakeAPI{claims: claimList(next)}
				if stays {
					api.claims = append(api.claims, deviceClaim("c", b.name(0, 19, 1)))
				}
				b.api = api
				defer after(time.Second, func() { b.unprepare("c") })()
				defer after(2*time.Second, func() { b.unprepare("a") })()
				took, err := prepareIn(t, b.Preparer, next)
				if want := 2 * time.Second; !stays && (err != nil || took != want) || stays && (err == nil || took != 0) {
					t.Errorf("got %v after %s", err, took)
				}
			})
		})
	}
}

// Shares of one kind exclude each other by what they take together.
func TestPrepare_SharesLeave(t *testing.T) {
	share := func(uid types.UID, memory string) *resourceapi.ResourceClaim {
		return claimOf(uid, shareResult("r", 0, gpu.TimeSlice, "shares=1", "memory="+memory))
	}
	next := share("next", "55Gi")
	for name, tt := range map[string]struct {
		left []*resourceapi.ResourceClaim
		took time.Duration
		ok   bool
	}{
		"just enough leaves": {claimList(share("b", "25Gi")), time.Second, true},
		"too little does":    {claimList(share("a", "30Gi")), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.api = &fakeAPI{claims: append(claimList(next), tt.left...)}
				mustPrepare(t, b.Preparer, share("a", "30Gi"))
				mustPrepare(t, b.Preparer, share("b", "25Gi"))
				defer after(time.Second, func() { mustUnprepare(t, b.Preparer, share("a", "30Gi")) })()
				took, err := prepareIn(t, b.Preparer, next)
				if took != tt.took || (err == nil) != tt.ok {
					t.Errorf("got %v after %s, want it prepared: %t after %s", err, took, tt.ok, tt.took)
				}
			})
		})
	}
}

// Another plugin process releases without this one noticing.
func TestPrepare_ReleasedByAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newBed(t)
		held, next := claimOn("a", 1), claimOn("b", 1)
		mustPrepare(t, old.Preparer, held)
		b := old.another().start()
		b.api = &fakeAPI{claims: claimList(next)}
		defer after(2500*time.Millisecond, func() { mustUnprepare(t, old.Preparer, held) })()
		if took, err := prepareIn(t, b.Preparer, next); err != nil || took != 3*time.Second {
			t.Errorf("got %v after %s, want it prepared after 3s", err, took)
		}
		wantDisk(t, b, line("b", 1))
	})
}
