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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// awayAllocations are those of an API server that has a claim with a device of the node, and says nothing of claims while it is away.
func awayAllocations(t *testing.T, inventory func() *gpu.Node, listed func(error)) (
	a *allocations, ledger *claims.Ledger, client *fake.Clientset, away *atomic.Bool,
) {
	ledger, client, away = newEngine(t).Ledger, fake.NewClientset(renamedClaim("x", "gpu.cleave.dev")), new(atomic.Bool)
	away.Store(true)
	client.PrependReactor("*", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("away")
	})
	follower := claims.NewFollower(ledger, cluster.Claims{Client: client}, inventory)
	return &allocations{follower: follower, listed: listed, wake: make(chan struct{}, 1), wanted: time.Now()}, ledger, client, away
}

// asked counts how often claims were listed and read since the last call.
func asked(client *fake.Clientset) (lists, gets int) {
	for _, a := range client.Actions() {
		switch a.GetVerb() + " " + a.GetResource().Resource {
		case "list resourceclaims":
			lists++
		case "get resourceclaims":
			gets++
		}
	}
	client.ClearActions()
	return lists, gets
}

// deleteClaim deletes a claim without a request.
func deleteClaim(t *testing.T, client *fake.Clientset, name string) {
	t.Helper()
	if err := client.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "ns", name); err != nil {
		t.Fatal(err)
	}
}

// The claims of the cluster are listed at the start, until that has worked, and when that is wanted; in between, only a claim that is
// not prepared is asked for, less and less often.
func TestAllocations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var listed atomic.Int64
		a, ledger, client, away := awayAllocations(t, func() *gpu.Node { return nil }, func(error) { listed.Add(1) })
		defer background(t.Context(), a.run)()
		count := func(when string, after time.Duration, lists, least, most int) {
			t.Helper()
			<-time.After(after)
			synctest.Wait()
			if l, g := asked(client); l != lists || g < least || g > most {
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
		away.Store(false)
		count("it answers", 10*time.Second, 1, 2, 4)
		count("an hour later", time.Hour, 0, 100, 130)
		began, _ := a.state()
		a.want(began)
		count("listed since", time.Second, 0, 0, 1)
		a.want(time.Now())
		count("a listing is wanted", time.Second, 1, 0, 2)
		if listed.Load() != 5 || len(ledger.Allocations()) != 1 {
			t.Errorf("%d listings are reported, and %d claims known; want 5, and 1", listed.Load(), len(ledger.Allocations()))
		}
		deleteClaim(t, client, "x")
		count("the claim is deleted", time.Minute, 0, 1, 2)
		count("nobody is asked for", time.Hour, 0, 0, 0)
	})
}

// The listing at the start fails, and the check of another driver name lists the claims before the next attempt.
func TestAllocations_ListedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var looks atomic.Int64
		inventory := func() *gpu.Node { // once for each look at the claim
			if looks.Add(1) == 1000 {
				cancel()
			}
			return nil
		}
		a, _, client, away := awayAllocations(t, inventory, func(error) {})
		defer background(ctx, a.run)()
		synctest.Wait()
		away.Store(false)
		if !a.list(ctx) {
			t.Error("the claims are not listed")
		}
		<-time.After(time.Minute)
		if lists, _ := asked(client); ctx.Err() != nil || lists != 2 {
			t.Errorf("%d lists and %d looks within a minute, want 2 and some ten", lists, looks.Load())
		}
	})
}
