// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// work is a set of tasks, in this order. They call the driver or write to a disk, either of which may hang.
type work uint

const (
	keepWork work = 1 << iota
	inventoryWork
	// These take locks of GPUs, which Prepare may hold for as long as the kubelet waits for it. No reset begins while they run, so what is
	// forgotten is the one before.
	scanWork
	recoverWork
	leaveMIGWork
	layoutWork
	forgetResetWork
)

// workTime bounds how long a step of the loop waits for work: health and policies of all GPUs are handled by the loop.
const workTime = time.Second

// planned returns the part of a plan that runs concurrently with the loop, and keeps what that needs of the plan.
func (r *workRunner) planned(p *Plan) (due work) {
	if p.Recover {
		due |= recoverWork
	}
	if p.LeaveMIGMode {
		due |= leaveMIGWork
	}
	if p.Layouts {
		r.mu.Lock()
		r.offer = p.Offer
		r.mu.Unlock()
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
	// offer is what layoutWork was planned for: by the time it runs, or while it does, the GPUs may offer something else.
	offer *policy.Node
	// policy is what keepWork persists, kept what it did, keepErr why the last attempt failed.
	policy, kept *Policy
	keepErr      string
	// inventory is what inventoryWork last took, limits are the GPUs whose memory can be limited, limitsErr is why some of them did not
	// answer.
	inventory *gpu.Node
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

// known returns an inventory without GPUs that inventoryWork has not taken yet, and those of its GPUs whose memory can be limited: a
// claim on a GPU that was offered before would stay without a limit.
func (r *workRunner) known(now *gpu.Node) (*gpu.Node, map[gpu.PCIAddress]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	unknown := func(g gpu.GPU) bool {
		taken := r.inventory.Find(g.PCI.DeviceName())
		return taken == nil || taken.UUID != g.UUID
	}
	if r.inventory == nil || !slices.ContainsFunc(now.GPUs, unknown) {
		return now, r.limits
	}
	known := *now
	known.GPUs = slices.DeleteFunc(slices.Clone(now.GPUs), unknown)
	return &known, r.limits
}

// limitsFailed reports whether GPUs did not answer.
func (r *workRunner) limitsFailed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limitsErr != nil
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
	case inventoryWork:
		r.takeInventory(ctx, o)
	case scanWork:
		o.Claims.Scan(ctx)
	case recoverWork:
		o.Claims.Recover(ctx)
	case leaveMIGWork:
		o.Claims.LeaveMIGMode(ctx)
	case layoutWork:
		r.mu.Lock()
		offer := r.offer
		r.mu.Unlock()
		problems := o.Claims.ApplyLayouts(ctx, offer)
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
	active, before := r.policy, r.keepErr
	r.mu.Unlock()
	err := o.KeepPolicy(active)
	if err != nil && text(err) != before {
		klog.FromContext(ctx).Error(err, "The active policy could not be saved for a restart; retrying")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepErr = text(err); err == nil {
		r.kept = active
	}
}

// takeInventory prepares what an added GPU needs before it is offered. A GPU that does not answer keeps its limit.
func (r *workRunner) takeInventory(ctx context.Context, o *Options) {
	now := o.Hardware.Inventory()
	r.mu.Lock()
	before := r.inventory
	r.mu.Unlock()
	if before != nil && !before.SameGPUs(now) {
		o.Hardware.SyncInventory(ctx, now)
	}
	answers, err := o.Hardware.MemoryLimits(ctx, now)
	if err != nil {
		klog.FromContext(ctx).Error(err, "GPUs do not say whether they can limit the memory of time slices", "retryAfter", o.ReconcileEvery)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limits := map[gpu.PCIAddress]bool{}
	for i := range now.GPUs {
		pci := now.GPUs[i].PCI
		limits[pci] = r.limits[pci]
		if answer, ok := answers[pci]; ok {
			limits[pci] = answer
		}
	}
	r.inventory, r.limits, r.limitsErr = now, limits, err
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
