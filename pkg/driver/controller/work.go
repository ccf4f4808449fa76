// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// work is a set of tasks on hardware and records, in this order. Those from scanWork on take locks of GPUs, which Prepare may hold for
// as long as the kubelet waits for it; all call the driver, which may hang, and write to a disk.
type work uint

const (
	keepWork work = 1 << iota
	limitsWork
	inventoryWork
	scanWork
	recoverWork
	leaveMIGWork
	layoutWork
	forgetResetWork
)

// workTime bounds how long a step of the loop waits for work: health and policies of all GPUs are handled by the loop.
const workTime = time.Second

// workOf returns the part of a plan that runs concurrently with the loop.
func workOf(p *Plan) (due work) {
	if p.Recover {
		due |= recoverWork
	}
	if p.LeaveMIGMode {
		due |= leaveMIGWork
	}
	if p.Layouts {
		due |= layoutWork
	}
	if p.ForgetReset {
		due |= forgetResetWork
	}
	return due
}

// do starts work and waits for it, and what runs already, as long as time permits: usually until its end.
func (l *Loop) do(ctx context.Context, r *workRunner, w work) {
	if w == 0 {
		return
	}
	r.start(ctx, &l.Options, w, func() { l.Mark(Work) })
	r.await(ctx, l.until)
}

// workRunner runs tasks concurrently with the loop, one after another. Tasks requested meanwhile run once, afterwards.
type workRunner struct {
	running sync.WaitGroup

	mu  sync.Mutex
	due work
	// ended is closed at the end of the running work; nil without any.
	ended chan struct{}
	// late is set once the loop has stopped waiting.
	late     bool
	problems []LayoutProblem
	// policy is what keepWork persists, kept what it did, keepErr why the last attempt failed.
	policy, kept *Policy
	keepErr      string
	// limits are of the last successful limitsWork, limitsErr is why the last one failed.
	limits    map[gpu.PCIAddress]bool
	limitsErr error
}

// state reports whether work is running, and the problems of the last attempt to apply layouts.
func (r *workRunner) state() (working bool, problems []LayoutProblem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended != nil, r.problems
}

// keep sets the policy that keepWork persists, and returns keepWork unless it has.
func (r *workRunner) keep(p *Policy) work {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.policy = p; p.Equal(r.kept) {
		return 0
	}
	return keepWork
}

// memoryLimits returns the GPUs whose memory can be limited, as last known, and why it could not be determined again.
func (r *workRunner) memoryLimits() (limits map[gpu.PCIAddress]bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limits, r.limitsErr
}

// start adds work. At the end of all work late is called, unless the loop waited for that.
func (r *workRunner) start(ctx context.Context, o *Options, more work, late func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due |= more
	if r.due == 0 || r.ended != nil {
		return
	}
	r.ended, r.late = make(chan struct{}), false
	r.running.Go(func() {
		for first := r.take(ctx, late); first != 0; first = r.take(ctx, late) {
			r.do(ctx, o, first)
		}
	})
}

func (r *workRunner) do(ctx context.Context, o *Options, w work) {
	switch w {
	case keepWork:
		r.keepPolicy(ctx, o)
	case limitsWork:
		r.askLimits(ctx, o)
	case inventoryWork:
		o.Hardware.SyncInventory(ctx)
	case scanWork:
		o.Claims.Scan(ctx)
	case recoverWork:
		o.Claims.Recover(ctx)
	case leaveMIGWork:
		o.Claims.LeaveMIGMode(ctx)
	case layoutWork:
		problems := o.Claims.ApplyLayouts(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.problems = problems
	case forgetResetWork:
		o.Claims.ForgetReset(ctx)
	}
}

// keepPolicy persists the active policy.
func (r *workRunner) keepPolicy(ctx context.Context, o *Options) {
	r.mu.Lock()
	policy, before := r.policy, r.keepErr
	r.mu.Unlock()
	err := o.KeepPolicy(policy)
	if err != nil && text(err) != before {
		klog.FromContext(ctx).Error(err, "The active policy could not be saved for a restart; retrying")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepErr = text(err); err == nil {
		r.kept = policy
	}
}

// askLimits determines the GPUs whose memory can be limited.
func (r *workRunner) askLimits(ctx context.Context, o *Options) {
	limits, err := o.Hardware.MemoryLimits(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Memory of time slices on added GPUs is not limited", "retryAfter", o.ReconcileEvery)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limitsErr = err; err == nil {
		r.limits = limits
	}
}

// take removes and returns the first task due; 0, and ends the run, if there is none.
func (r *workRunner) take(ctx context.Context, late func()) work {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.due != 0 && ctx.Err() == nil {
		first := r.due & -r.due
		r.due &^= first
		return first
	}
	close(r.ended)
	r.ended = nil
	if r.late {
		late()
	}
	return 0
}

// await returns at the end of all work, or at the deadline of the step; zero for none.
func (r *workRunner) await(ctx context.Context, until time.Time) {
	r.mu.Lock()
	ended := r.ended
	r.mu.Unlock()
	if ended == nil {
		return
	}
	var timeout <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ended:
		return
	case <-timeout:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = r.ended != nil
}
