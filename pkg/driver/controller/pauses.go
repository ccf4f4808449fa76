// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Clients such as DCGM are stopped for a change of a GPU's mode, or its reset, where the policy names the labels under which their
// DaemonSets select nodes. The pause is the node's: it begins once an attempt has found that nothing but pods without a claim have a GPU
// open, holds for all GPUs that are due, and ends when none is left or when nothing has changed for pauseAtMost. After a pause in vain
// the next one is further away each time. Nothing of it is remembered across a restart: labels that are found paused are set back, and
// the next attempt begins another pause.

// Reasons of Events about clients.
const (
	reasonPaused  = "ClientsPaused"  // clients of GPUs are stopped by their label, for a change of the MIG mode or a reset
	reasonResumed = "ClientsResumed" // clients of GPUs may start again
	reasonNotGone = "ClientsNotGone" // clients of GPUs were stopped in vain, and may start again
)

// Times of pauses.
const (
	// pauseAtMost is how long clients stay stopped while no GPU changes. A pod has 30 s to end unless its spec says otherwise.
	pauseAtMost = 3 * time.Minute
	// pauseFailures is how many failures of a GPU in a row end a pause for it, if the last two or more have another reason.
	pauseFailures = 3
	// pauseRetry is the time from a pause in vain to the next one, doubled each time up to pauseRetryAtMost.
	pauseRetry       = 15 * time.Minute
	pauseRetryAtMost = 4 * time.Hour
)

// PauseMemory is the state, from plan to plan, of a pause of clients.
type PauseMemory struct {
	// Labels are paused until then, or until the end of a change that runs; none without a pause. Waiting are the GPUs that it is for,
	// Changed is set once one of them has changed, or need not any more.
	Labels  []string
	Until   time.Time
	Waiting []string
	Changed bool
	// Failures counts the pauses in vain since the last that was not, Next is when the next may begin.
	Failures int
	Next     time.Time
}

// active reports whether clients are paused.
func (m *PauseMemory) active() bool { return len(m.Labels) > 0 }

// waits reports whether a pause goes on for a GPU that pods do not keep from its change: it was not tried yet, or its last failure may
// pass, such as that the API server did not answer or a process had just ended.
func (m *PauseMemory) waits(name string, mode *ModeMemory) bool {
	return m.active() && (mode.Failures == 0 || mode.Failures < pauseFailures && slices.Contains(m.Waiting, name))
}

// ends is when a pause has lasted too long: clients that start again while a GPU is being changed would get in its way.
func (m *PauseMemory) ends(o *Observed) time.Time {
	if o.ModeRunning.GPU != "" {
		return m.Until.Add(pauseAtMost)
	}
	return m.Until
}

// pausable are the labels, of those that the policy names for a GPU, under which clients can be stopped: they may be changed, and no other
// client has set them to another value.
func (o *Observed) pausable(named []string) []string {
	var labels []string
	for _, label := range named {
		switch o.Cluster.Node.Clients[label] {
		case v1alpha1.ClientsDeployed, v1alpha1.ClientsPaused:
			labels = append(labels, label)
		}
	}
	return labels
}

// mayPause reports whether the last failure of a GPU is one that a pause of clients may end, now or later.
func (p modes) mayPause(o *Observed, g *gpu.GPU, m *ModeMemory) bool {
	return m.Held && len(o.pausable(p.Offer.Offer(g).PauseClients)) > 0 && (p.Memory.Pause.active() || p.pauseDue(m))
}

// pauseDue reports whether a pause may begin after the last failure of a GPU.
func (p modes) pauseDue(m *ModeMemory) bool { return m.FailedAt.After(p.Memory.Pause.Next) }

// progress notes whether a GPU has changed that the pause is for. It reports whether claims keep one from that now.
func (p modes) progress(o *Observed, wanted map[string]bool) (claimed bool) {
	pause := &p.Memory.Pause
	for _, name := range pause.Waiting {
		switch free, left := wanted[name]; {
		case !left:
			pause.Changed, pause.Until = true, o.Now.Add(pauseAtMost)
		case !free && !p.Memory.Modes[name].Since.IsZero():
			claimed = true
		}
	}
	return claimed
}

// pause decides which clients are stopped, given the GPUs that are to be changed, and whether nothing of claims keeps them from it.
func (p modes) pause(o *Observed, wanted map[string]bool) {
	pause := &p.Memory.Pause
	if !o.Ready || p.Release != nil {
		pause.Labels = nil
		return
	}
	var labels []string
	var waiting []*gpu.GPU
	failed, begin := false, false // for another reason; a pause is due
	for i := range p.Offer.GPUs {
		g := &p.Offer.GPUs[i]
		name := g.PCI.DeviceName()
		m, can := p.Memory.Modes[name], o.pausable(p.Offer.Offer(g).PauseClients)
		switch {
		case !wanted[name]:
		case len(can) > 0 && (m.Held || pause.waits(name, &m)):
			labels, waiting, begin = append(labels, can...), append(waiting, g), begin || m.Held && p.pauseDue(&m)
		case len(can) > 0 && m.Failures > 0:
			failed = true
		}
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	claimed := p.progress(o, wanted)
	switch {
	case !pause.active() && begin:
		pause.Labels, pause.Until = labels, o.Now.Add(pauseAtMost)
		p.reportPaused(waiting)
	case !pause.active():
		return
	case len(waiting) == 0 && (pause.Changed || !failed && !claimed):
		p.reportResumed()
		*pause = PauseMemory{Next: o.Now} // the next one needs another failure
		return
	case len(waiting) == 0, !o.Now.Before(pause.ends(o)):
		p.endInVain(o, waiting)
		return
	}
	pause.Labels, pause.Waiting = labels, nil
	p.Pause = labels
	for _, g := range waiting {
		name := g.PCI.DeviceName()
		pause.Waiting = append(pause.Waiting, name)
		if m := p.Memory.Modes[name]; m.Held { // attempts follow each other quickly meanwhile
			m.Failures = min(m.Failures, 1)
			p.Memory.Modes[name] = m
		}
	}
}

// endInVain ends a pause that has not let all GPUs change.
func (p modes) endInVain(o *Observed, waiting []*gpu.GPU) {
	pause := &p.Memory.Pause
	again := min(pauseRetryAtMost, pauseRetry<<min(pause.Failures, 8))
	labels := strings.Join(pause.Labels, ", ")
	*pause = PauseMemory{Failures: pause.Failures + 1, Next: o.Now.Add(again)}
	var left []string
	for _, g := range waiting {
		if m := p.Memory.Modes[g.PCI.DeviceName()]; m.Failures > 0 { // what was said of others is older
			left = append(left, fmt.Sprintf("%s: %s", Describe(g), m.Said))
		}
	}
	r := Report{Log: "Clients of GPUs were stopped in vain", Values: []any{"labels", labels, "waiting", left, "nextIn", again},
		Warning: true, Reason: reasonNotGone, Message: fmt.Sprintf("%s: set back to %q, as GPUs cannot be changed without these clients either. "+
			"They are stopped again in %s at the earliest", labels, v1alpha1.ClientsDeployed, again)}
	if len(left) > 0 {
		r.Message = fmt.Sprintf("%s: set back to %q after %s without a change. %s. The clients are stopped again in %s at the earliest",
			labels, v1alpha1.ClientsDeployed, pauseAtMost, strings.Join(left, "; "), again)
	}
	p.report(r)
}

func (p modes) reportPaused(waiting []*gpu.GPU) {
	labels := strings.Join(p.Memory.Pause.Labels, ", ")
	var open []string
	for _, g := range waiting {
		open = append(open, fmt.Sprintf("%s: %s", Describe(g), p.Memory.Modes[g.PCI.DeviceName()].Said))
	}
	p.report(Report{
		Log: "Stopping clients of GPUs", Values: []any{"labels", labels, "waiting", open}, Reason: reasonPaused,
		Message: fmt.Sprintf("%s: set from %q to %q, so that clients of these DaemonSets close what is to be changed. %s",
			labels, v1alpha1.ClientsDeployed, v1alpha1.ClientsPaused, strings.Join(open, "; ")),
	})
}

func (p modes) reportResumed() {
	labels := strings.Join(p.Memory.Pause.Labels, ", ")
	p.report(Report{
		Log: "Clients of GPUs may start again", Values: []any{"labels", labels},
		Reason: reasonResumed,
		Message: fmt.Sprintf("%s: set back to %q, except where another client has set another value than %q",
			labels, v1alpha1.ClientsDeployed, v1alpha1.ClientsPaused),
	})
}
