// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

// Plan is the actions to take, in the order of its fields.
type Plan struct {
	// Reports are changes and persisting problems.
	Reports []Report
	Status  Status
	// Keep is the policy to save for a restart; nil for none.
	Keep *Policy
	// Offer is the new offer of the GPUs.
	Offer *policy.Node
	// NewInventory is set when GPUs were added, replaced or removed; Removed are the removed ones.
	NewInventory bool
	Removed      []gpu.PCIAddress
	// Slices are to be published; nil if nothing has changed, or if the node must be observed again first.
	Slices []nodeslices.Slice
	// Release is the reason to release the NVIDIA driver; nil for none.
	Release error
	// Recover finishes claims that were interrupted, LeaveMIGMode disables unneeded MIG modes, Layouts partitions GPUs as the
	// policy wants.
	Recover, LeaveMIGMode, Layouts bool
	// Mode is the GPU whose MIG mode is to be changed, or that is to be reset, concurrently; nil for none.
	Mode *ModeOrder
	// Pause are the labels of clients that are to be stopped; nil for none.
	Pause []string
	// ForgetReset is set when the label that requested the last reset is gone.
	ForgetReset bool
	// List is the time after which the claims of the API server must be listed; zero if they need not be.
	List time.Time
	// ObserveAgain is set if applying the plan changes what was observed.
	ObserveAgain bool
	// LookAgain is the latest time of the next plan; zero for never.
	LookAgain time.Time
	// Memory is for the next plan.
	Memory Memory

	// noticeAt is when what follows from notices can change by itself; zero for never.
	noticeAt time.Time
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

// Status is the input of metrics and readiness.
type Status struct {
	// Policy is the name of the active policy, or "none". PolicyInvalid is set while the requested one is unusable, PolicyFailed
	// when that is new. NoPolicy is why there is none.
	Policy        string
	PolicyInvalid bool
	PolicyFailed  bool
	NoPolicy      error
	// Conflict names other drivers that offer GPUs of the node.
	Conflict error
	// Notice is what follows from notices about the node's machine.
	Notice notices.Decision
	// GPUs is the number found.
	GPUs int
	// Published is the view that the last slices were built from; nil before the first.
	Published *View
}

// Times of retries.
const (
	// finishEvery is the pause between attempts to finish work: a partition that was in use, a share whose supervisor was
	// unavailable, a blocked layout.
	finishEvery = 10 * time.Second
	// maxPasses bounds how often a node is observed again before its slices are published regardless.
	maxPasses = 5
)

// Desired decides what to do on a node from its observed state. It is pure: equal observations give equal plans.
func Desired(o Observed) Plan {
	p := Plan{Memory: o.Memory}
	p.choosePolicy(&o)
	p.considerMPS(&o)
	p.offer(&o)
	p.compareInventory(&o)
	p.considerConflicts(&o)
	p.considerSpecs(&o)
	p.considerLayoutProblems(&o)
	machine{&p}.consider(&o)
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

// scheduleWork decides which work the hardware needs, and whether the node must be observed again afterwards.
func (p *Plan) scheduleWork(o *Observed) {
	if !o.Ready || p.Release != nil {
		return
	}
	p.Recover = p.mustRecover(o)
	if p.Recover {
		p.Memory.Recovered, p.Memory.Unfinished = o.Now, time.Time{}
	}
	// In a conflict a GPU without claims may be another driver's, in the mode that it needs. The end of one makes up for it.
	p.LeaveMIGMode = p.Memory.Conflict == "" && (p.Recover || o.Changed.Has(Allocations) || o.Memory.Conflict != "")
	p.Layouts = p.mustApplyLayouts(o)
	p.ObserveAgain = o.Pass < maxPasses && (p.Recover || p.Layouts || p.offerChanged(o))
}

// mustRecover reports whether to bring hardware and specs in line with the records: after the start, after a change of something
// that recovery depends on, periodically, and while work is unfinished. An attempt to finish takes long where many processes are looked
// at. None is due while work runs, nor in the plan that sees its end, which mode changes and layouts may be waiting for.
func (p *Plan) mustRecover(o *Observed) bool {
	m := &p.Memory
	unfinished := o.Unfinished || len(o.LayoutProblems) > 0
	switch {
	case !unfinished:
		m.Unfinished = time.Time{}
	case m.Unfinished.IsZero():
		m.Unfinished = o.Now
	}
	finish := unfinished && !o.Working && !o.Changed.Has(Work) && !o.Now.Before(p.finishAt(o))
	mpsChanged := o.Memory.MPSKnown && o.Memory.MPSAway != m.MPSAway
	return m.Recovered.IsZero() || mpsChanged || p.NewInventory || o.Changed.Has(Periodic|ClaimSpecs) || finish
}

// finishAt is when the next attempt to finish is due.
func (p *Plan) finishAt(o *Observed) time.Time {
	from := p.Memory.Unfinished
	if o.Recovered.After(from) {
		from = o.Recovered
	}
	return from.Add(finishEvery)
}

// scheduleLook decides when to plan again even though no change is observed.
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
	if !p.Memory.Unfinished.IsZero() && o.Ready && !o.Working { // the end of work marks the loop
		look(p.finishAt(o))
	}
	if p.Memory.Notice.Holds() {
		look(o.Now.Add(noticeEvery))
	}
	if at := p.noticeAt; !at.IsZero() {
		look(at)
	}
	modes{p}.lookAgain(o, look)
	if o.Ready && o.Pass >= maxPasses && (p.Recover || p.Layouts || p.offerChanged(o)) {
		look(o.Now.Add(finishEvery))
	}
}
