// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// The MIG mode of GPUs that need a reset to change it follows the policy, if that asks for it. The GPU's devices are withdrawn with
// the policy that offered them; its claims are left to end. Then each GPU goes through these states. Every plan starts from
// observations, so that the plugin may restart at any time:
//
//	in the wrong mode -> the API server has its devices as withdrawn, for modeSettle -> no claim has it -> changed -> in the right mode
//	                                                                                ^                      |
//	                                                                                +--- a longer pause ---+ failed
//
// An interrupted change is on record. It is finished first, even if the policy no longer wants a change.
//
// A reset that the node's label requests goes the same way: the GPU's devices are tainted instead of withdrawn, and its mode stays. It goes
// before a change of the mode. It also goes before an interrupted change once that could not be finished: a GPU that has failed and was
// closed may answer nothing before its reset, which restores the same.

// Reasons of Events about MIG modes.
const (
	reasonModePending    = "MIGModePending"    // a GPU's MIG mode will be changed once claims have ended
	reasonModeNotChanged = "MIGModeNotChanged" // a GPU's MIG mode could not be changed; retried
	reasonModeChanged    = "MIGModeChanged"    // a GPU's MIG mode has changed
)

// Reasons of Events about resets on request.
const (
	reasonResetPending = "GPUResetPending" // a GPU will be reset once claims have ended
	reasonNotReset     = "GPUNotReset"     // a GPU could not be reset, and is tried again; or the label names none, or was carried out before
	reasonReset        = "GPUReset"        // a GPU was reset on request
)

// Times of mode changes.
const (
	// modeSettle is how long the API server must have shown devices as withdrawn before claims on them are counted. By then, most
	// schedulers that had not seen that have written their allocations; later ones are detected.
	modeSettle = 1500 * time.Millisecond
	// modeRetry is the delay before a failed change is retried, doubled each time up to modeRetryAtMost.
	modeRetry       = 5 * time.Second
	modeRetryAtMost = 5 * time.Minute
)

// ModeOrder requests a change of a GPU's MIG mode, its reset, or the completion of an earlier change.
type ModeOrder struct {
	// GPU is the name of its whole-GPU device.
	GPU    string
	Enable bool
	// Reset is the request, the value of the node's label, to reset the GPU in the mode that it has; empty for a change.
	Reset string
}

// ModeFailure is why the last attempt to change the mode of a GPU, or to reset it, failed.
type ModeFailure struct {
	Enable bool
	Reset  string
	Err    error
	At     time.Time
}

// ModeMemory is the state, from plan to plan, of a GPU whose mode must change, or that is to be reset.
type ModeMemory struct {
	Enable bool
	Reset  string
	// Began is when the change was first wanted. Failures before are those of an earlier change.
	Began time.Time
	withdrawal
	// Seen is set once the API server was seen to have the devices as withdrawn, which Since does not say of one that drops taints.
	Seen bool
	// Failures counts the attempts, FailedAt is when the last one failed.
	Failures int
	FailedAt time.Time
	// Held is set if nothing but pods without a claim kept the last attempt from it.
	Held bool
	// Said is the last report of a failure, Waits that of claims.
	Said, Waits string
}

// next is the time of the next attempt.
func (m ModeMemory) next() time.Time {
	settled := m.Since.Add(modeSettle)
	if retry := m.FailedAt.Add(m.pause()); m.Failures > 0 && retry.After(settled) {
		return retry
	}
	return settled
}

// pause is the time between the last failure and the next attempt.
func (m ModeMemory) pause() time.Duration {
	if m.Failures == 0 || m.Failures >= 8 {
		return modeRetryAtMost
	}
	return min(modeRetryAtMost, modeRetry<<(m.Failures-1))
}

// modes is the part of a plan that concerns MIG modes.
type modes struct{ *Plan }

// consider selects the GPU whose mode changes now: one at a time, because nvidia-smi opens all GPUs.
func (p modes) consider(o *Observed) {
	before := p.Memory.Modes
	p.Memory.Modes = nil
	allocated := claimsOf(o.Allocations)
	wanted := map[string]bool{} // GPUs to be changed; true if no claim keeps them from it, or the change runs
	for i := range p.Offer.GPUs {
		g := &p.Offer.GPUs[i]
		name := g.PCI.DeviceName()
		target := g.MIG.Enabled
		if wants := p.Offer.Offer(g).WantsMIG; wants != nil {
			target = *wants
		}
		// What was cut short is finished first, unless that failed, and a reset need not wait.
		requested, reset := o.resetOf(name), ""
		f, failed := o.ModeFailures[name]
		left := o.ModesLeft[name] && (o.ModeRunning.GPU != name || o.ModeRunning.Reset == "")
		if !left || failed && allocated[name].waits(true) == "" {
			reset = requested
		}
		m, known := before[name]
		if known && m.Reset != "" && m.Reset == o.ResetDone {
			p.reportReset(o, g)
		}
		if target == g.MIG.Enabled && reset == "" && !o.ModesLeft[name] {
			continue
		}
		if !known || m.Enable != target || m.Reset != reset {
			m = ModeMemory{Enable: target, Reset: reset, Began: o.Now}
		}
		if !m.Seen && m.refused(o) {
			m.Since = time.Time{}
		}
		if failed && f.Enable == target && f.Reset == reset && f.At.After(m.FailedAt) && f.At.After(m.Began) {
			m.FailedAt, m.Failures, m.Held = f.At, m.Failures+1, errors.Is(f.Err, gpu.ErrHeldByPods)
			p.reportFailure(g, &m, f.Err, p.mayPause(o, g, &m))
		}
		changes := target != g.MIG.Enabled || reset != "" // otherwise allocated devices do not change
		if resets := reset != "" || failed && requested != ""; changes || resets {
			p.reportClaims(g, &m, allocated[name], resets)
		}
		p.Memory.setMode(name, m)
		settled := !m.Since.IsZero() && allocated[name].waits(reset != "") == ""
		due := !o.Now.Before(m.next()) || !changes && m.Failures == 0
		if p.mayChange(o) && (!changes || settled) && due {
			p.Mode = &ModeOrder{name, target, reset}
		}
		if changes {
			wanted[name] = settled || name == o.ModeRunning.GPU
		}
	}
	p.pause(o, wanted)
	p.checkRequest(o)
}

// mayChange reports whether a change can start now.
func (p modes) mayChange(o *Observed) bool {
	return o.Ready && !o.Working && p.Mode == nil && o.ModeRunning.GPU == "" && p.Release == nil && !p.Memory.Recovered.IsZero() &&
		!p.Recover && !p.ObserveAgain && p.Memory.Conflict == ""
}

// setMode sets the state of a GPU's mode change.
func (m *Memory) setMode(name string, mode ModeMemory) {
	if m.Modes == nil {
		m.Modes = map[string]ModeMemory{}
	}
	m.Modes[name] = mode
}

// taints are those of a GPU's devices while its mode is being changed, even if the policy wants them again meanwhile, and from the
// request of a reset to its end.
func (p modes) taints(node *policy.Node, o *Observed) []nodeslices.Taint {
	var taints []nodeslices.Taint
	for i := range node.GPUs {
		g := &node.GPUs[i]
		name, key := g.PCI.DeviceName(), nodeslices.TaintOccupied
		running := name == o.ModeRunning.GPU
		switch {
		case o.resetOf(name) != "" || running && o.ModeRunning.Reset != "":
			key = nodeslices.TaintReset
		case !running || g.MIG.Enabled == o.ModeRunning.Enable:
			continue
		}
		for _, s := range node.Shapes(g) {
			if !node.Offer(g).IsWithdrawn(s) { // otherwise already tainted
				taints = append(taints, nodeslices.Taint{Device: s.Name(), Key: key})
			}
		}
	}
	return taints
}

// notePublished notes since when the API server has had the GPUs' devices as withdrawn. This plan's slices have yet to arrive. One that
// drops taints is never seen to have those of a reset: a claim that is allocated nevertheless keeps the GPU from it, or, once the GPU is
// locked, is prepared after it. A change of the mode takes devices away, so it waits until they are no longer published.
func (p modes) notePublished(o *Observed) {
	if !o.Ready || p.ObserveAgain {
		return
	}
	for name, m := range p.Memory.Modes { // each by itself
		if !m.Seen {
			m.Seen = p.arrived(o, !m.Planned.IsZero())
			m.withdrawal = m.published(o, func(bool) bool { return m.Seen })
			if m.Since.IsZero() && m.Reset == "" && p.Memory.Previous != nil {
				m.withdrawal = withdrawal{}
			}
		}
		p.Memory.Modes[name] = m
	}
}

// lookAgain schedules the next look at modes.
func (p modes) lookAgain(o *Observed, look func(at time.Time)) {
	if p.Memory.Pause.active() {
		look(p.Memory.Pause.ends(o))
	}
	if o.ModeRunning.GPU != "" || p.Mode != nil {
		return // its end marks the loop
	}
	for _, m := range p.Memory.Modes {
		if at := m.next(); at.After(o.Now) && (!m.Since.IsZero() || m.Failures > 0) {
			look(at)
		}
		if late := m.late(o); m.Since.IsZero() && late.After(o.Now) {
			look(late)
		}
	}
}

// reportClaims reports the claims that a change, or a reset, waits for, again when they change.
func (p modes) reportClaims(g *gpu.GPU, m *ModeMemory, using claimsUsing, reset bool) {
	waits, before := using.waits(reset), m.Waits
	m.Waits = waits
	if waits == "" || waits == before {
		return
	}
	r := Report{
		Log: "Waiting for claims to end before changing the MIG mode of a GPU",
		Values: []any{"gpu", g.PCI.DeviceName(), "enable", m.Enable, "claims", using.claims, "adminAccess", using.admin,
			"releasing", slices.Concat(using.releasing, using.ending)},
		Reason:  reasonModePending,
		Message: fmt.Sprintf("%s %s once %s", Describe(g), modeWords(m.Enable, "will enter MIG mode", "will leave MIG mode"), waits),
	}
	if reset {
		r.Log, r.Reason = "Waiting for claims to end before resetting a GPU", reasonResetPending
		r.Message = fmt.Sprintf("%s will be reset once %s", Describe(g), waits)
	}
	p.report(r)
}

// reportFailure reports why a mode could not be changed, each reason once. paused is set if clients are stopped for it, which has Events
// of its own.
func (p modes) reportFailure(g *gpu.GPU, m *ModeMemory, err error, paused bool) {
	again := m.pause()
	r := Report{Log: "The MIG mode of a GPU could not be changed", Err: err,
		Values: []any{"gpu", g.PCI.DeviceName(), "enable", m.Enable, "attempts", m.Failures, "retryIn", again}}
	reason, cannot := reasonModeNotChanged, modeWords(m.Enable, "cannot enter MIG mode yet", "cannot leave MIG mode yet")
	switch {
	case m.Reset != "":
		r.Log, reason, cannot = "A GPU could not be reset", reasonNotReset, "cannot be reset yet"
	case m.Enable == g.MIG.Enabled:
		r.Log, cannot = "A GPU could not be restored after an interrupted change or reset",
			"cannot be restored yet after an interrupted change of its MIG mode, or an interrupted reset"
	}
	said := oneLine(err)
	if named := p.Offer.Offer(g).PauseClients; m.Held && !paused && len(named) > 0 && p.Memory.Pause.Failures == 0 {
		said += fmt.Sprintf(" (pauseClients does not help: none of %s has the value %q and may be changed by the plugin)",
			strings.Join(named, ", "), v1alpha1.ClientsDeployed)
	}
	if m.Said != said && paused {
		m.Said = said
	}
	if m.Said != said {
		m.Said = said
		r.Warning, r.Reason = true, reason
		r.Message = fmt.Sprintf("%s %s: %s. Next attempt in %s, later ones after up to %s", Describe(g), cannot, said, again,
			modeRetryAtMost)
	}
	p.report(r)
}

// reportChanged reports that a GPU's mode has changed.
func (p modes) reportChanged(g *gpu.GPU) {
	p.report(Report{
		Log: "The MIG mode of a GPU has changed", Values: []any{"gpu", g.PCI.DeviceName(), "uuid", g.UUID, "enabled", g.MIG.Enabled},
		Reason: reasonModeChanged, Message: Describe(g) + modeWords(g.MIG.Enabled, " is in MIG mode now", " is out of MIG mode now"),
	})
}

func modeWords(enable bool, on, off string) string {
	if enable {
		return on
	}
	return off
}

// oneLine formats an error in one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", ", ") }

// claimsUsing are the claims that have devices of a GPU, in order of records.
type claimsUsing struct {
	claims, admin []string
	// releasing have ended, but their devices are not released yet. Of those in ending only what a reset does not wait for is left.
	releasing, ending []string
}

// waits describes what must happen before no claim uses the GPU, or before it can be reset; empty for nothing.
func (c claimsUsing) waits(reset bool) string {
	if !reset {
		c.releasing = slices.Concat(c.releasing, c.ending)
	}
	var all []string
	add := func(claims []string, words string) {
		if len(claims) > 0 {
			all = append(all, fmt.Sprintf(words, strings.Join(claims, ", ")))
		}
	}
	add(c.claims, "these claims have ended: %s")
	add(c.admin, "these claims with admin access have ended: %s")
	add(c.releasing, "these claims, which have ended, have released their devices: %s")
	return strings.Join(all, "; and once ")
}

// claimsOf groups the claims by the device of their GPU, but for those of which nothing is left there that a change waits for.
func claimsOf(all []*records.Record) map[string]claimsUsing {
	using := map[string]claimsUsing{}
	for _, r := range all {
		for _, name := range r.GPUs() {
			u := using[name]
			list := &u.claims
			switch {
			case r.EndsBeforeChange(name):
				continue
			case r.EndsWithReset(name):
				list = &u.ending
			case r.State == records.Releasing:
				list = &u.releasing
			case !slices.ContainsFunc(r.Devices, func(d records.Device) bool { return d.GPU == name && !d.AdminAccess }):
				list = &u.admin
			}
			if text := r.Claim.String(); !slices.Contains(*list, text) {
				*list = append(*list, text)
			}
			using[name] = u
		}
	}
	return using
}
