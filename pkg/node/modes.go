// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
)

// The MIG mode of GPUs that need a reset for it follows the policy, where that says so. What such a GPU offers is withdrawn with
// the policy that offered it; its claims end in their own time. Then each GPU goes through these states, and every plan begins
// from what was observed, so that a restart may come at any time:
//
//	in the wrong mode -> its devices published as withdrawn, for modeSettle -> no claim has it -> changed -> in the right mode
//	                                                                       ^                      |
//	                                                                       +--- a longer pause ---+ failed
//
// A change that was begun and cut short is on record. It is finished first, also where the policy wants no change any more.

// Reasons of Events about MIG modes.
const (
	reasonModePending    = "MIGModePending"
	reasonModeNotChanged = "MIGModeNotChanged"
	reasonModeChanged    = "MIGModeChanged"
)

// Times of mode changes.
const (
	// modeSettle is how long devices must have been published as withdrawn before the claims that have them are counted: a
	// scheduler that has not seen that yet allocates within less.
	modeSettle = time.Second
	// modeRetry is the time before a change that failed is tried again, twice as long each time, and at most modeRetryAtMost.
	modeRetry       = 5 * time.Second
	modeRetryAtMost = 5 * time.Minute
)

// ModeOrder is a GPU whose MIG mode is to be changed, or whose earlier change is to be finished.
type ModeOrder struct {
	// GPU is the name of its whole-GPU device.
	GPU    string
	Enable bool
}

// ModeFailure is why the last attempt to change the mode of a GPU failed.
type ModeFailure struct {
	Enable bool
	Err    error
	At     time.Time
}

// ModeMemory is what a plan hands to the next about a GPU whose mode is to be changed.
type ModeMemory struct {
	Enable bool
	// Since is when its devices were first published as withdrawn; zero before.
	Since time.Time
	// Failures counts the attempts, FailedAt is when the last one failed.
	Failures int
	FailedAt time.Time
	// Said is what was reported last.
	Said string
}

// next is when the next attempt may be made.
func (m ModeMemory) next() time.Time {
	if m.Failures == 0 {
		return m.Since.Add(modeSettle)
	}
	pause := modeRetryAtMost
	if m.Failures < 8 {
		pause = min(pause, modeRetry<<(m.Failures-1))
	}
	return m.FailedAt.Add(pause)
}

// modes are the part of a plan that is about MIG modes.
type modes struct{ *Plan }

// consider decides of which GPU the mode is to be changed now: of one at a time, as nvidia-smi opens all GPUs.
func (p modes) consider(o *Observed) {
	before := p.Memory.Modes
	p.Memory.Modes = nil
	allocated := claimsOf(o.Allocations)
	for i := range p.Offer.GPUs {
		g := &p.Offer.GPUs[i]
		name := g.PCI.DeviceName()
		target := g.MIG.Enabled
		if wants := p.Offer.Offer(g).WantsMIG; wants != nil {
			target = *wants
		}
		if target == g.MIG.Enabled && !o.ModesLeft[name] {
			continue
		}
		m := before[name]
		if m.Enable != target {
			m = ModeMemory{Enable: target}
		}
		if f, failed := o.ModeFailures[name]; failed && f.Enable == target && f.At.After(m.FailedAt) {
			m.FailedAt, m.Failures = f.At, m.Failures+1
			p.reportFailure(g, &m, f.Err)
		}
		if target != g.MIG.Enabled {
			p.reportClaims(g, &m, allocated[name])
		}
		p.Memory.setMode(name, m)
		left := target == g.MIG.Enabled // nothing of what is allocated changes
		settled := !m.Since.IsZero() && len(allocated[name]) == 0
		due := !o.Now.Before(m.next()) || left && m.Failures == 0
		if p.mayChange(o) && (left || settled) && due {
			p.Mode = &ModeOrder{name, target}
		}
	}
}

// mayChange reports whether a change can begin now.
func (p modes) mayChange(o *Observed) bool {
	return o.Ready && p.Mode == nil && o.ModeRunning.GPU == "" && p.Release == nil && !p.Memory.Recovered.IsZero() && !p.Recover &&
		!p.ObserveAgain && p.Memory.Conflict == ""
}

// setMode notes a GPU; what other memories refer to stays as it is.
func (m *Memory) setMode(name string, mode ModeMemory) {
	if m.Modes == nil {
		m.Modes = map[string]ModeMemory{}
	}
	m.Modes[name] = mode
}

// taints are on what a GPU offers while its mode is being changed, also where the policy has come to want that again.
func (p modes) taints(node *policy.Node, o *Observed) []publish.Taint {
	var taints []publish.Taint
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if g.PCI.DeviceName() != o.ModeRunning.GPU || g.MIG.Enabled == o.ModeRunning.Enable {
			continue
		}
		for _, s := range node.Shapes(g) {
			if !node.Offer(g).IsWithdrawn(s) { // else it is tainted already
				taints = append(taints, publish.Taint{Device: s.Name(), Key: publish.TaintOccupied})
			}
		}
	}
	return taints
}

// notePublished notes since when what GPUs offered is published as withdrawn.
func (p modes) notePublished(o *Observed) {
	if !o.Ready || p.ObserveAgain {
		return
	}
	for name, m := range p.Memory.Modes { // each by itself
		if m.Since.IsZero() {
			m.Since = o.Now
			p.Memory.Modes[name] = m
		}
	}
}

// lookAgain is when to look again because of modes.
func (p modes) lookAgain(o *Observed, look func(at time.Time)) {
	if o.ModeRunning.GPU != "" || p.Mode != nil {
		return // its end marks the loop
	}
	for _, m := range p.Memory.Modes {
		if at := m.next(); at.After(o.Now) && !m.Since.IsZero() {
			look(at)
		}
	}
}

// reportClaims reports once which claims a change waits for.
func (p modes) reportClaims(g *gpu.GPU, m *ModeMemory, claims []string) {
	const said = "claims"
	if len(claims) == 0 || m.Said == said {
		return
	}
	m.Said = said
	message := fmt.Sprintf("%s %s once these claims have ended: %s", Describe(g),
		modeWords(m.Enable, "is to enter MIG mode", "is to leave MIG mode"), strings.Join(claims, ", "))
	p.report(Report{Log: "The MIG mode of a GPU is to be changed once its claims have ended",
		Values: []any{"gpu", g.PCI.DeviceName(), "enable", m.Enable, "claims", claims}, Reason: reasonModePending, Message: message})
}

// reportFailure reports why a mode could not be changed, each reason once.
func (p modes) reportFailure(g *gpu.GPU, m *ModeMemory, err error) {
	again := m.next().Sub(m.FailedAt)
	r := Report{Log: "The MIG mode of a GPU could not be changed", Err: err,
		Values: []any{"gpu", g.PCI.DeviceName(), "enable", m.Enable, "attempts", m.Failures, "retryIn", again}}
	if m.Said != err.Error() {
		m.Said = err.Error()
		r.Warning, r.Reason = true, reasonModeNotChanged
		r.Message = fmt.Sprintf("%s %s: %s. It is tried again, at first in %s", Describe(g),
			modeWords(m.Enable, "cannot enter MIG mode yet", "cannot leave MIG mode yet"), oneLine(err), again)
	}
	p.report(r)
}

// reportChanged reports that a GPU has another mode than before.
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

// oneLine is an error in one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", ", ") }

// claimsOf are the claims that have something of GPUs, by device and in order of records.
func claimsOf(all []*records.Record) map[string][]string {
	claims := map[string][]string{}
	for _, r := range all {
		for _, name := range r.GPUs() {
			if text := r.Claim.String(); !slices.Contains(claims[name], text) {
				claims[name] = append(claims[name], text)
			}
		}
	}
	return claims
}
