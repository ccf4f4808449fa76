// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
)

// Times between two attempts to list the claims of the cluster: the first, and the longest.
const (
	listRetry       = 2 * time.Second
	listRetryAtMost = time.Minute
)

// allocations keep known which claims have been allocated something of the node, alongside the control loop: a listing at the start,
// and whenever the loop wants one or another driver name is looked at, and questions for single claims in between.
type allocations struct {
	// asking guards follower.
	asking   sync.Mutex
	follower *claims.Follower
	// listed is called after each listing, with its error.
	listed func(err error)
	// wake has a value when a record may have gone, or a listing is wanted.
	wake chan struct{}

	mu sync.Mutex
	// wanted is the time after which a listing is to begin. began is when the last one did that has succeeded, failed when one
	// failed last; zero for never.
	wanted, began, failed time.Time
}

// newAllocations has the claims listed at once.
func newAllocations(s *service) *allocations {
	return &allocations{
		follower: claims.NewFollower(s.engine.Ledger, cluster.Claims{Client: s.client}, s.names.inventory),
		listed: func(err error) {
			s.ready.listed(err)
			s.loop.Mark(controller.Listing)
		},
		wake: s.allocated, wanted: time.Now(),
	}
}

// start lists and asks until the returned function is called.
func (a *allocations) start(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { a.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// want has the claims listed, unless that was begun after a time already.
func (a *allocations) want(after time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if after.After(a.wanted) {
		a.wanted = after
	}
	signal(a.wake)
}

// state is that of the listings.
func (a *allocations) state() (began, failed time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.began, a.failed
}

// due reports whether the claims are to be listed.
func (a *allocations) due() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.began.Before(a.wanted)
}

// run lists and asks until ctx ends.
func (a *allocations) run(ctx context.Context) {
	pause, retry := listRetry, time.Time{}
	for ctx.Err() == nil {
		if a.due() && !time.Now().Before(retry) {
			if a.list(ctx) {
				pause, retry = listRetry, time.Time{}
			} else {
				retry, pause = time.Now().Add(pause), min(2*pause, listRetryAtMost)
			}
		}
		again, err := a.follow(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Whether a claim is still allocated cannot be found out; its devices stay published")
		}
		if !retry.IsZero() && (again.IsZero() || retry.Before(again)) {
			again = retry
		}
		a.await(ctx, again)
	}
}

// follow asks for the claims that it is time to ask for.
func (a *allocations) follow(ctx context.Context) (again time.Time, err error) {
	a.asking.Lock()
	defer a.asking.Unlock()
	return a.follower.Follow(ctx, time.Now())
}

// await returns at a time, unless that is zero, and when there is something new.
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
		klog.FromContext(ctx).Error(err, "What is allocated on this node cannot be found out; until then what is published stays, and nothing "+
			"is withdrawn")
	}
	a.listed(err)
	return err == nil
}
