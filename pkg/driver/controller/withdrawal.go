// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"reflect"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// A device that is offered no more may be allocated to a claim that is not prepared yet: the kubelet prepares claims once volumes
// are mounted, which may take minutes. Were such a device gone, the claim could not be prepared, and the scheduler would allocate
// again what it consumes. So it stays, tainted, through these states, whatever it went for:
//
//	published with its taint -> the API server has that, for withdrawSettle -> claims are listed -> gone, or kept for those that have it
//
// The records, and what was listed before, say of a claim that is known that it has the device; only those unknown are looked for.

// Times of withdrawals.
const (
	// withdrawSettle is how long the API server must have had devices with their taint before claims are listed: schedulers see the
	// taint by their watches, and what they had decided before is written.
	withdrawSettle = 5 * time.Second
	// arriveAtMost is after what time slices count as arrived that were never seen as they are wanted, because an API server
	// without the feature gates for taints or counters drops those, and answers.
	arriveAtMost = 30 * time.Second
	// rewriteAtMost is the longest time from a write of slices that has failed to the next (DefaultTypedControllerRateLimiter of
	// k8s.io/client-go/util/workqueue, by which k8s.io/dynamic-resource-allocation/resourceslice tries again).
	rewriteAtMost = 1000 * time.Second
)

// withdrawal is how far devices are withdrawn.
type withdrawal struct {
	// Planned is when they were to be published with their taint, Since is when the API server first had that; zero before.
	Planned, Since time.Time
}

// over reports whether the claims were listed since the devices could no longer be allocated.
func (w withdrawal) over(o *Observed) bool {
	return !w.Since.IsZero() && !o.Listed.Before(w.settled())
}

// settled is when claims can be listed.
func (w withdrawal) settled() time.Time { return w.Since.Add(withdrawSettle) }

// late is when slices that were not seen to arrive count as arrived. While the API server does not answer, or refuses them, they may be
// on their way.
func (w withdrawal) late(o *Observed) time.Time {
	from := w.Planned
	if o.ListFailed.After(from) {
		from = o.ListFailed
	}
	if rewritten := o.WriteFailed.Add(rewriteAtMost); !o.WriteFailed.IsZero() && rewritten.After(from) {
		from = rewritten
	}
	return from.Add(arriveAtMost)
}

// published is a withdrawal after a plan that publishes it. arrived says that the API server has had it before.
func (w withdrawal) published(o *Observed, arrived func(before bool) bool) withdrawal {
	before := !w.Planned.IsZero()
	if !before {
		w.Planned = o.Now
	}
	if !w.Since.IsZero() && !o.Arrived && (o.ListFailed.After(w.Since) || o.WriteFailed.After(w.Since)) {
		w.Since = time.Time{} // it counted as arrived, and the API server was away, or refused it
	}
	if w.Since.IsZero() && (arrived(before) || !o.Now.Before(w.late(o))) {
		w.Since = o.Now
	}
	return w
}

// look is when to look again because of a withdrawal, and list the time after which claims are to be listed now; zero for none.
func (w withdrawal) look(o *Observed) (again, list time.Time) {
	switch {
	case w.Planned.IsZero() || w.over(o):
		return time.Time{}, time.Time{}
	case w.Since.IsZero():
		return w.late(o), time.Time{}
	case o.Now.Before(w.settled()):
		return w.settled(), time.Time{}
	default:
		return time.Time{}, w.settled()
	}
}

// withdrawals are the part of a plan that is about devices that go.
type withdrawals struct{ *Plan }

// noteBefore remembers in the first plan what the plugin had published before its start, by the policy that was active then. The
// node may have fewer capabilities than it had then: an MPS supervisor starts alongside, a feature gate was switched off.
func (p withdrawals) noteBefore(o *Observed, was *Policy) {
	if o.Memory.Offered != nil || was == nil || len(o.Before) == 0 {
		return
	}
	means := p.means(o)
	means.MPS, means.Shares, means.SharesBeside, means.Counters = nil, nil, nil, nil
	only := map[string]bool{}
	for _, device := range o.Before {
		only[device] = true
	}
	p.Memory.Before = policy.Apply(rulesOf(nil), o.Inventory, policy.Capabilities{})
	addWithdrawn(p.Memory.Before, policy.Apply(rulesOf(was), o.Inventory, means), only)
}

// withdraw has a node offer, withdrawn, what it offered before and does no longer.
func (p withdrawals) withdraw(o *Observed, node *policy.Node) {
	m := &p.Memory
	if m.Previous != nil && m.Withdrawal.over(o) {
		m.Previous, m.Withdrawal = nil, withdrawal{}
	}
	if m.Published != nil && lacks(node, m.Published.Node) {
		m.Previous, m.Withdrawal = m.Published.Node, withdrawal{}
	}
	if m.Published != nil {
		m.Before = nil
	}
	if m.Previous == nil && m.Before != nil && !offersAll(node, m.Before) {
		m.Previous, m.Withdrawal = m.Before, withdrawal{}
	}
	addWithdrawn(node, m.Previous, nil)
}

// offersAll reports whether a node offers all devices of before that its GPUs can be.
func offersAll(node, before *policy.Node) bool {
	for i := range before.GPUs {
		g := node.Find(before.GPUs[i].PCI.DeviceName())
		if g == nil {
			continue
		}
		for _, s := range before.Shapes(&before.GPUs[i]) {
			if _, offered := node.FindShape(s.Name()); !offered && g.CanBe(s.Name()) {
				return false
			}
		}
	}
	return true
}

// lacks reports whether a node offers less than before: a device is missing or withdrawn that was not, and that its GPU can be.
func lacks(node, before *policy.Node) bool {
	if node.Node == before.Node && reflect.DeepEqual(node.Offers, before.Offers) {
		return false
	}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		was := before.Find(g.PCI.DeviceName())
		if was == nil || was.UUID != g.UUID {
			continue
		}
		now, then := node.Offer(g), before.Offer(was)
		offered := map[string]bool{}
		for _, s := range now.Shapes(g) {
			offered[s.Name()] = !now.IsWithdrawn(s)
		}
		for _, s := range then.Shapes(was) {
			if then.IsWithdrawn(s) {
				continue
			}
			if !offered[s.Name()] && g.CanBe(s.Name()) {
				return true
			}
		}
	}
	return false
}

// note notes how far withdrawals are after what this plan publishes, and has claims listed where that is due.
func (p withdrawals) note(o *Observed) {
	m := &p.Memory
	if o.Ready && (!p.ObserveAgain || p.Slices != nil) {
		if m.Previous != nil {
			m.Withdrawal = m.Withdrawal.published(o, func(before bool) bool { return p.arrived(o, before) })
		}
		if m.Conflict != "" && !m.Hidden {
			m.Hiding = m.Hiding.published(o, func(before bool) bool { return p.arrived(o, before) })
		}
	}
	for _, w := range []withdrawal{m.Withdrawal, m.Hiding} {
		if _, list := w.look(o); list.After(p.List) {
			p.List = list
		}
	}
}

// arrived reports whether the API server has what is published by this plan, or by one before.
func (p *Plan) arrived(o *Observed, before bool) bool {
	return o.Arrived && (before || p.Slices == nil)
}

// hide decides whether what is not allocated is not published at all because of a conflict. What was published before is
// tainted first, as it may have been allocated.
func (p withdrawals) hide(o *Observed) {
	m := &p.Memory
	if m.Conflict == "" {
		m.Hidden, m.Hiding = false, withdrawal{}
		return
	}
	if m.Published == nil || m.Hiding.over(o) {
		m.Hidden, m.Hiding = true, withdrawal{}
	}
}
