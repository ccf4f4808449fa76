// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
)

// Intervals between two attempts to list the claims of the cluster: the first, and the longest.
const (
	listRetry       = 2 * time.Second
	listRetryAtMost = time.Minute
)

// retry is when to make an attempt again that fails.
type retry struct {
	at    time.Time
	pause time.Duration
}

func (r *retry) due() bool { return !time.Now().Before(r.at) }

// note notes the outcome of an attempt.
func (r *retry) note(succeeded bool) {
	if succeeded {
		*r = retry{}
		return
	}
	r.pause = min(max(listRetry, 2*r.pause), listRetryAtMost)
	r.at = time.Now().Add(wait.Jitter(r.pause, 0.2))
}

// allocations tracks the claims that are allocated devices of the node, alongside the control loop: it lists claims at the start
// and whenever the loop requests it or another driver name is checked, and reads single claims in between.
type allocations struct {
	// asking guards follower.
	asking   sync.Mutex
	follower *claims.Follower
	// listed is called after each listing, with its error.
	listed func(err error)
	// wake has a value when a record may have been removed, or a listing is requested.
	wake chan struct{}

	mu sync.Mutex
	// A listing that began before wanted is out of date. began is when the last successful one began, failed when the last failed one
	// ended; zero for never.
	wanted, began, failed time.Time
}

// newAllocations requests a first listing.
func newAllocations(s *service) *allocations {
	return &allocations{
		follower: claims.NewFollower(s.engine.Ledger, cluster.Claims{Client: s.client}, s.names.inventory),
		listed: func(err error) {
			s.ready.set(notListed, err)
			s.loop.Mark(controller.Listing)
		},
		wake: s.allocated, wanted: time.Now(),
	}
}

// want requests a listing, unless one has begun after the given time.
func (a *allocations) want(after time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if after.After(a.wanted) {
		a.wanted = after
	}
	signal(a.wake)
}

// state returns when listings last began and failed.
func (a *allocations) state() (began, failed time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.began, a.failed
}

// due reports whether a listing is due.
func (a *allocations) due() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.began.Before(a.wanted)
}

// run lists and follows claims until ctx ends.
func (a *allocations) run(ctx context.Context) {
	var listing retry
	for ctx.Err() == nil {
		if due := a.due(); !due || listing.due() {
			listing.note(!due || a.list(ctx)) // or the check of another driver name has listed them
		}
		again, err := a.follow(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot determine whether a claim is still allocated; its devices stay published")
		}
		if retry := listing.at; !retry.IsZero() && (again.IsZero() || retry.Before(again)) {
			again = retry
		}
		a.await(ctx, again)
	}
}

// follow reads the claims that are due.
func (a *allocations) follow(ctx context.Context) (again time.Time, err error) {
	a.asking.Lock()
	defer a.asking.Unlock()
	return a.follower.Follow(ctx, time.Now())
}

// await returns at the given time, unless that is zero, or when there is something new.
func (a *allocations) await(ctx context.Context, at time.Time) {
	var due <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-a.wake:
	case <-due:
	}
}

// list lists the claims once.
func (a *allocations) list(ctx context.Context) bool {
	a.asking.Lock()
	defer a.asking.Unlock()
	began := time.Now()
	err := a.follower.List(ctx)
	if ctx.Err() != nil {
		return false
	}
	a.mu.Lock()
	if err == nil {
		a.began = began
	} else {
		a.failed = time.Now()
	}
	a.mu.Unlock()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot determine the allocations on this node; until then all published devices stay published "+
			"and nothing is withdrawn")
	}
	a.listed(err)
	return err == nil
}
