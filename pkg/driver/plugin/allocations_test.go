// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
)

// countingAPI counts listings and questions, and refuses them while it is away.
type countingAPI struct {
	claim       atomic.Pointer[resourceapi.ResourceClaim]
	lists, gets atomic.Int64
	away        atomic.Bool
}

func (a *countingAPI) answer() error {
	if a.away.Load() {
		return errors.New("away")
	}
	return nil
}

func (a *countingAPI) Claim(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
	a.gets.Add(1)
	return a.claim.Load(), a.answer()
}

func (a *countingAPI) Each(_ context.Context, visit func(*resourceapi.ResourceClaim) bool) error {
	a.lists.Add(1)
	if err := a.answer(); err != nil {
		return err
	}
	visit(a.claim.Load())
	return nil
}

// The claims of the cluster are listed at the start, until that has worked, and when that is wanted; in between, only a claim that is
// not prepared is asked for, less and less often.
func TestAllocations(t *testing.T) {
	locks, err := claims.OpenLocks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		api, claim := &countingAPI{}, renamedClaim("x", "gpu.cleave.dev")
		claim.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "x", UID: "uid-x"}
		api.claim.Store(claim)
		api.away.Store(true)
		engine := claims.New(claims.Options{Identity: claims.Identity{Driver: "gpu.cleave.dev", Pool: "node-1"}, Locks: locks})
		var listed atomic.Int64
		a := &allocations{
			follower: claims.NewFollower(engine.Ledger, api, func() *gpu.Node { return nil }), listed: func(error) { listed.Add(1) },
			wake: make(chan struct{}, 1), wanted: time.Now(),
		}
		defer background(t.Context(), a.run)()
		count := func(when string, after time.Duration, lists, least, most int64) {
			t.Helper()
			<-time.After(after)
			synctest.Wait()
			if l, g := api.lists.Swap(0), api.gets.Swap(0); l != lists || g < least || g > most {
				t.Errorf("%s: %d lists and %d questions, want %d, and %d to %d", when, l, g, lists, least, most)
			}
		}
		count("API server away", 10*time.Second, 3, 0, 0) // after 0, 2 and 6 s
		for range 100 {
			signal(a.wake)
		}
		count("something else happens meanwhile", 0, 0, 0, 0)
		if began, failed := a.state(); !began.IsZero() || failed.IsZero() {
			t.Errorf("a listing began at %s and failed at %s, want one that has failed", began, failed)
		}
		api.away.Store(false)
		count("it answers", 10*time.Second, 1, 2, 4)
		count("an hour later", time.Hour, 0, 100, 130)
		began, _ := a.state()
		a.want(began)
		count("listed since", time.Second, 0, 0, 1)
		a.want(time.Now())
		count("a listing is wanted", time.Second, 1, 0, 2)
		if listed.Load() != 5 || len(engine.Ledger.Allocations()) != 1 {
			t.Errorf("%d listings are reported, and %d claims known; want 5, and 1", listed.Load(), len(engine.Ledger.Allocations()))
		}
		api.claim.Store(nil)
		count("the claim is deleted", time.Minute, 0, 1, 2)
		count("nobody is asked for", time.Hour, 0, 0, 0)
	})
}

// The listing at the start fails, and the check of another driver name lists the claims before the next attempt.
func TestAllocations_ListedMeanwhile(t *testing.T) {
	locks, err := claims.OpenLocks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		api, claim := &countingAPI{}, renamedClaim("x", "gpu.cleave.dev")
		claim.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "x", UID: "uid-x"}
		api.claim.Store(claim)
		api.away.Store(true)
		engine := claims.New(claims.Options{Identity: claims.Identity{Driver: "gpu.cleave.dev", Pool: "node-1"}, Locks: locks})
		ctx, cancel := context.WithCancel(t.Context())
		var looks atomic.Int64
		inventory := func() *gpu.Node { // once for each look at the claim
			if looks.Add(1) == 1000 {
				cancel()
			}
			return nil
		}
		a := &allocations{
			follower: claims.NewFollower(engine.Ledger, api, inventory), listed: func(error) {}, wake: make(chan struct{}, 1), wanted: time.Now(),
		}
		defer background(ctx, a.run)()
		synctest.Wait()
		api.away.Store(false)
		if !a.list(ctx) {
			t.Error("the claims are not listed")
		}
		<-time.After(time.Minute)
		if lists := api.lists.Load(); ctx.Err() != nil || lists != 2 {
			t.Errorf("%d lists and %d looks within a minute, want 2 and some ten", lists, looks.Load())
		}
	})
}
