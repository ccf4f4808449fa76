// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// Plan is what is to be done, in the order of its fields.
type Plan struct {
	// Reports are what has changed, or is still wrong.
	Reports []Report
	Status  Status
	// Keep is the policy that a restart begins with; nil for none.
	Keep *Policy
	// Offer is what the GPUs offer from now on.
	Offer *policy.Node
	// NewInventory is set when GPUs were added, replaced or removed; Removed are those that are gone.
	NewInventory bool
	Removed      []gpu.PCIAddress
	// Slices are to be published; nil where nothing has changed, or where the node has to be observed again first.
	Slices []nodeslices.Slice
	// Release is why the NVIDIA driver is to be released; nil if it is not.
	Release error
	// Recover has claims finished that were begun, LeaveMIGMode has MIG mode disabled where nothing needs it, Layouts has GPUs
	// partitioned as the policy wants.
	Recover, LeaveMIGMode, Layouts bool
	// Mode is the GPU whose MIG mode is to be changed alongside the loop; nil for none.
	Mode *ModeOrder
	// List is the time after which the claims of the API server are to be listed; zero where they need not be.
	List time.Time
	// ObserveAgain is set when what is applied changes what was observed.
	ObserveAgain bool
	// LookAgain is when to make a plan again at the latest; zero for never.
	LookAgain time.Time
	// Memory is for the next plan.
	Memory Memory
}

// Report is a line of the log, an Event about the node, or both.
type Report struct {
	// Log is a message, with Err as an error if that is set; empty for none.
	Log    string
	Err    error
	Values []any
	// Reason and Message are those of an Event; empty for none.
	Reason, Message string
	Warning         bool
}

// Status is what metrics and readiness report.
type Status struct {
	// Policy is the name of the active policy, or "none". PolicyInvalid is set while another one is requested that cannot be
	// used, PolicyFailed when that is new. NoPolicy is why there is none.
	Policy        string
	PolicyInvalid bool
	PolicyFailed  bool
	NoPolicy      error
	// Conflict is who else offers GPUs of the node.
	Conflict error
	// GPUs is how many were found.
	GPUs int
	// Published is what the last slices were made of; nil before the first.
	Published *View
}

// Times of retries.
const (
	// finishEvery is the time between attempts to finish what could not be finished: a partition that was in use, a share
	// whose supervisor was away, a layout that something is in the way of.
	finishEvery = 10 * time.Second
	// maxPasses bounds how often a node is observed again before its slices are published all the same.
	maxPasses = 5
)

// Desired decides what is to be done on a node as it was observed. It is pure: it changes nothing, and equal observations give
// equal plans.
func Desired(o Observed) Plan {
	p := Plan{Memory: o.Memory}
	p.choosePolicy(&o)
	p.considerMPS(&o)
	p.offer(&o)
	p.compareInventory(&o)
	p.considerConflicts(&o)
	p.considerSpecs(&o)
	p.considerLayoutProblems(&o)
	p.considerRelease(&o)
	p.scheduleWork(&o)
	modes{&p}.consider(&o)
	p.publish(&o)
	modes{&p}.notePublished(&o)
	withdrawals{&p}.note(&o)
	p.scheduleLook(&o)
	p.Status.Published = p.Memory.Published
	return p
}

// report adds a report.
func (p *Plan) report(r Report) { p.Reports = append(p.Reports, r) }

// scheduleWork decides what is to be done on the hardware, and whether the node is to be observed again after that.
func (p *Plan) scheduleWork(o *Observed) {
	if !o.Ready || p.Release != nil {
		return
	}
	p.Recover = p.mustRecover(o)
	if p.Recover {
		p.Memory.Recovered, p.Memory.Unfinished = o.Now, time.Time{}
	}
	p.LeaveMIGMode = p.Recover || o.Changed.Has(Allocations)
	p.Layouts = p.mustApplyLayouts(o)
	p.ObserveAgain = o.Pass < maxPasses && (p.Recover || p.Layouts || p.offerChanged(o))
}

// mustRecover reports whether hardware and specs are to be brought in line with the records: after the start, after what
// recovery depends on has changed, periodically, and while something is left to finish.
func (p *Plan) mustRecover(o *Observed) bool {
	m := &p.Memory
	unfinished := o.Unfinished || len(o.LayoutProblems) > 0
	switch {
	case !unfinished:
		m.Unfinished = time.Time{}
	case m.Unfinished.IsZero():
		m.Unfinished = o.Now
	}
	mpsChanged := o.Memory.MPSKnown && o.Memory.MPSAway != m.MPSAway
	return m.Recovered.IsZero() || mpsChanged || p.NewInventory || o.Changed.Has(Periodic|ClaimSpecs) ||
		unfinished && !o.Now.Before(p.finishAt())
}

// finishAt is when the next attempt to finish is due.
func (p *Plan) finishAt() time.Time {
	from := p.Memory.Unfinished
	if p.Memory.Recovered.After(from) {
		from = p.Memory.Recovered
	}
	return from.Add(finishEvery)
}

// scheduleLook decides when to look again though nothing is observed to change.
func (p *Plan) scheduleLook(o *Observed) {
	look := func(at time.Time) {
		if p.LookAgain.IsZero() || at.Before(p.LookAgain) {
			p.LookAgain = at
		}
	}
	for _, w := range []withdrawal{p.Memory.Withdrawal, p.Memory.Hiding} {
		if again, _ := w.look(o); !again.IsZero() {
			look(again)
		}
	}
	if !p.Memory.Unfinished.IsZero() && o.Ready {
		look(p.finishAt())
	}
	modes{p}.lookAgain(o, look)
	if o.Ready && o.Pass >= maxPasses && (p.Recover || p.Layouts || p.offerChanged(o)) {
		look(o.Now.Add(finishEvery))
	}
}
