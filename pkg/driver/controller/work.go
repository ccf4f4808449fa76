// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
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
	// recovered is when recoverWork last ended.
	recovered time.Time
	// offer is what layoutWork was planned for: by the time it runs, or while it does, the GPUs may offer something else.
	offer *policy.Node
	// policy is what keepWork persists, kept what it did, keepErr why the last attempt failed.
	policy, kept *Policy
	keepErr      string
	// inventory is what inventoryWork last took, at asked. limits are the GPUs whose memory can be limited, limitsErr is why that is not
	// known of some, or why none can be. silent are the GPUs that have never said it and are not offered, by device.
	inventory *gpu.Node
	asked     time.Time
	limits    map[gpu.PCIAddress]bool
	limitsErr error
	silent    map[string]bool
}

// state reports whether work is running, when the last recovery ended, and the problems of the last attempt to apply layouts.
func (r *workRunner) state() (working bool, recovered time.Time, problems []LayoutProblem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended != nil, r.recovered, r.problems
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

// known returns an inventory without GPUs that inventoryWork has not taken yet or that did not answer it, and those of its GPUs whose
// memory can be limited: a claim on a GPU that was offered before would stay without a limit. A GPU of which something is allocated stays.
func (r *workRunner) known(now *gpu.Node, allocations []*records.Record) (*gpu.Node, map[gpu.PCIAddress]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range allocations {
		for _, device := range record.GPUs() {
			delete(r.silent, device) // and it is offered from then on
		}
	}
	unknown := func(g gpu.GPU) bool { return !r.took(&g) || r.silent[g.PCI.DeviceName()] }
	if r.inventory == nil || !slices.ContainsFunc(now.GPUs, unknown) {
		return now, r.limits
	}
	known := *now
	known.GPUs = slices.DeleteFunc(slices.Clone(now.GPUs), unknown)
	known.Problems = slices.Clone(now.Problems)
	for i := range now.GPUs {
		if g := &now.GPUs[i]; r.silent[g.PCI.DeviceName()] {
			known.Problems = append(known.Problems, gpu.Problem{Index: g.Index, Err: fmt.Errorf("%s is not offered before it says whether it "+
				"can limit the memory of time slices: %w", Describe(g), gpu.ErrHangs)})
		}
	}
	return &known, r.limits
}

// took reports whether inventoryWork has taken a GPU.
func (r *workRunner) took(g *gpu.GPU) bool {
	if r.inventory == nil {
		return false
	}
	taken := r.inventory.Find(g.PCI.DeviceName())
	return taken != nil && taken.UUID == g.UUID
}

// limitsFailed reports whether it is not known of all GPUs whether their memory can be limited, or whether that cannot be done.
func (r *workRunner) limitsFailed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limitsErr != nil
}

// askAgain reports whether GPUs that did not answer are to be asked again: at once when the health of one has changed, since it may be well
// now.
func (r *workRunner) askAgain(now time.Time, health bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended == nil && errors.Is(r.limitsErr, gpu.ErrHangs) && (health || !now.Before(r.asked.Add(finishEvery)))
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
		r.mu.Lock()
		defer r.mu.Unlock()
		r.recovered = time.Now()
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
	before, said := r.inventory, text(r.limitsErr)
	r.mu.Unlock()
	if before != nil && !before.SameGPUs(now) {
		o.Hardware.SyncInventory(ctx, now)
	}
	answers, err := o.Hardware.MemoryLimits(ctx, now)
	if err != nil && text(err) != said {
		klog.FromContext(ctx).Error(err, "Memory of time slices cannot be limited, or GPUs do not say whether it can; retrying")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limits, silent := map[gpu.PCIAddress]bool{}, map[string]bool{}
	for i := range now.GPUs {
		g, device := &now.GPUs[i], now.GPUs[i].PCI.DeviceName()
		answer, answered := answers[g.PCI]
		limits[g.PCI] = answer || err != nil && r.limits[g.PCI]
		if !answered && (!r.took(g) || r.silent[device]) {
			silent[device] = true
		}
	}
	r.inventory, r.asked, r.limits, r.limitsErr, r.silent = now, time.Now(), limits, err, silent
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
