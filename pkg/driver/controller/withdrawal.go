// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"reflect"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// A device that is no longer offered may be allocated to a claim that is not prepared yet: the kubelet prepares claims once volumes
// are mounted, which may take minutes. Without the device the claim could not be prepared, and the scheduler would allocate its
// resources again. So it stays, tainted, through these states, whatever replaces it:
//
//	published with its taint -> the API server has that, for withdrawSettle -> claims are listed -> gone, or kept for those that have it
//
// Claims in the records and in earlier listings are known to have the device; listing looks only for unknown ones.

// Times of withdrawals.
const (
	// withdrawSettle is how long the API server must have had the tainted devices before claims are listed: by then schedulers'
	// watches show the taint, and their earlier decisions are written.
	withdrawSettle = 5 * time.Second
	// arriveAtMost is the time after the last write began in which slices count as arrived though they were never read back unchanged:
	// an API server without the feature gates for taints or counters silently drops those fields. By then the API server has answered,
	// as it ends a request after a minute (--request-timeout of kube-apiserver).
	arriveAtMost = 65 * time.Second
	// rewriteAtMost is the longest time from a failed write of slices to the outcome of the next: the publisher has one made after 30 s,
	// and one that the API server does not answer fails after another 45 (HTTP/2 health checks of k8s.io/apimachinery/pkg/util/net).
	rewriteAtMost = 2 * time.Minute
)

// withdrawal is the progress of withdrawing devices.
type withdrawal struct {
	// Planned is when their publication with the taint was planned, Handed is when all slices of it were on their way to the API server,
	// Since is when that first had it; zero before.
	Planned, Handed, Since time.Time
}

// over reports whether claims were listed after the devices could no longer be allocated.
func (w withdrawal) over(o *Observed) bool {
	return !w.Since.IsZero() && !o.Listed.Before(w.settled())
}

// settled is when claims can be listed.
func (w withdrawal) settled() time.Time { return w.Since.Add(withdrawSettle) }

// late is when slices that were not seen to arrive count as arrived. While they are written one after another, or the API server is
// unavailable, or refuses them, they may still be pending. What is written once they were sent changes something else, and a busy node
// always has that.
func (w withdrawal) late(o *Observed) time.Time {
	from := w.Planned
	if o.Writing && w.Handed.IsZero() {
		from = o.Now
	}
	for _, at := range []time.Time{o.ListFailed, w.Handed} {
		if at.After(from) {
			from = at
		}
	}
	if rewritten := o.WriteFailed.Add(rewriteAtMost); !o.WriteFailed.IsZero() && rewritten.After(from) {
		from = rewritten
	}
	return from.Add(arriveAtMost)
}

// refused reports whether it counted as arrived, but the API server was unavailable or refused it.
func (w withdrawal) refused(o *Observed) bool {
	return !w.Since.IsZero() && !o.Arrived && (o.ListFailed.After(w.Since) || o.WriteFailed.After(w.Since))
}

// published returns the withdrawal after a plan that publishes it. arrived reports whether the API server has it.
func (w withdrawal) published(o *Observed, arrived func(before bool) bool) withdrawal {
	before := !w.Planned.IsZero()
	if !before {
		w.Planned = o.Now
	}
	if o.WriteFailed.After(w.Handed) {
		w.Handed = time.Time{} // slices are written again
	}
	if before && !o.Writing && w.Handed.IsZero() {
		w.Handed = o.Written
	}
	if w.refused(o) {
		w.Since = time.Time{}
	}
	if w.Since.IsZero() && (arrived(before) || !o.Now.Before(w.late(o))) {
		w.Since = o.Now
	}
	return w
}

// look returns when to look at a withdrawal again, and the time after which claims must be listed; zero for none.
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

// withdrawals is the part of a plan that concerns withdrawn devices.
type withdrawals struct{ *Plan }

// noteBefore remembers in the first plan the devices published before the plugin's start, under the policy active then. The node
// may have fewer capabilities now: the MPS supervisor may start at the same time, or a feature gate may be off now.
func (p withdrawals) noteBefore(o *Observed, was *Policy) {
	if o.Memory.Offered != nil || was == nil || len(o.Before) == 0 {
		return
	}
	caps := p.capabilities(o)
	caps.MPS, caps.Shares, caps.SharesBeside, caps.Counters = nil, nil, nil, nil
	only := map[string]bool{}
	for _, device := range o.Before {
		only[device] = true
	}
	p.Memory.Before = policy.Apply(rulesOf(nil), o.Inventory, policy.Capabilities{})
	addWithdrawn(p.Memory.Before, policy.Apply(rulesOf(was), o.Inventory, caps), only)
}

// withdraw adds to a node, as withdrawn, the devices that it offered before and no longer does.
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

// offersAll reports whether a node offers all devices of before that its GPUs support.
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

// lacks reports whether a node offers less than before: a device that its GPU supports is newly missing or withdrawn.
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

// note updates the progress of withdrawals after this plan's publication, and requests a listing of claims when due.
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

// arrived reports whether the API server has the slices of this plan, or of the one before.
func (p *Plan) arrived(o *Observed, before bool) bool {
	return o.Arrived && (before || p.Slices == nil)
}

// hide decides whether a conflict hides unallocated devices altogether. Published devices are tainted first, as they may have been
// allocated.
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
