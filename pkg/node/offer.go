// SPDX-License-Identifier: Apache-2.0

package node

import (
	"reflect"
	"slices"
	"time"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// withdrawAfter is how long devices that a new policy no longer offers stay published, tainted, though no record has them. A
// claim may have been allocated one and not have been prepared: were the device gone at once, that claim could not be prepared,
// and the scheduler would allocate again what it consumes.
const withdrawAfter = 5 * time.Second

// startWithdrawal remembers what the GPUs offer by the policy that is being replaced.
func (p *Plan) startWithdrawal(o *Observed, was *Policy) {
	before := o.Memory.Offered
	if before == nil { // the policy that was active when the plugin ended
		if was == nil {
			return
		}
		before = policy.Apply(rulesOf(was), o.Inventory, p.means(o))
	}
	for i := range before.GPUs {
		if len(before.Shapes(&before.GPUs[i])) > 0 {
			p.Memory.Previous, p.Memory.PreviousUntil = before, time.Time{}
			return
		}
	}
}

// offer decides what each GPU offers.
func (p *Plan) offer(o *Observed) {
	m := &p.Memory
	if m.Previous != nil && !m.PreviousUntil.IsZero() && !o.Now.Before(m.PreviousUntil) {
		m.Previous, m.PreviousUntil = nil, time.Time{}
	}
	node := policy.Apply(rulesOf(m.Active), o.Inventory, p.means(o))
	if m.Previous != nil {
		addWithdrawn(node, m.Previous)
	}
	p.Offer, m.Offered = node, node
}

// means is what the node can do besides what its boards can.
func (p *Plan) means(o *Observed) policy.Means {
	means := policy.Means{
		Shares:       o.NoShares,
		CgroupMemory: func(g *gpu.GPU) bool { return o.MemoryLimits[g.PCI] },
		Allocated:    records.AllocatedOf(o.Allocations),
		Partitions:   func(g *gpu.GPU) []gpu.Place { return o.Unclaimed[g.PCI] },
	}
	if !p.offersMPS(o) {
		means.MPS = o.MPS
	}
	return means
}

// addWithdrawn adds to what a node offers, withdrawn, what it offered before and no longer does.
func addWithdrawn(node, before *policy.Node) {
	for i := range node.GPUs {
		was := before.Find(node.GPUs[i].PCI.DeviceName())
		if was == nil {
			continue
		}
		now, then := &node.Offers[i], before.Offer(was)
		for _, s := range before.Shapes(was) {
			switch {
			case s.IsPartition() && s.IsShare():
				if now.Partitions == nil {
					now.Partitions = policy.NoPlaces(nil)
				}
				now.Partitions.KeepShared(s.SharedPlace(), then.Sharing(s))
			case s.Share == gpu.TimeSlice && now.TimeSlice == nil:
				now.TimeSlice, now.Withdrawn.TimeSlice = then.TimeSlice, true
			case s.Share == gpu.MPS && now.MPS == nil:
				now.MPS, now.Withdrawn.MPS = then.MPS, true
			case s.IsWhole() && !now.Whole:
				now.Whole, now.Withdrawn.Whole = true, true
			case s.IsPartition():
				if now.Partitions == nil {
					now.Partitions = policy.NoPlaces(nil)
				}
				if at := s.Place(); !now.Partitions.Has(at) && !slices.Contains(now.Partitions.Kept, at) {
					now.Partitions.Kept = append(now.Partitions.Kept, at)
				}
			}
		}
	}
}

// offerChanged reports whether the GPUs offer something else than when the node was observed.
func (p *Plan) offerChanged(o *Observed) bool { return !reflect.DeepEqual(o.Memory.Offered, p.Offer) }

// hasWithdrawn reports whether something is offered only because it is allocated, or was offered before.
func hasWithdrawn(node *policy.Node) bool {
	for i := range node.GPUs {
		if g := &node.GPUs[i]; slices.ContainsFunc(node.Shapes(g), node.Offer(g).IsWithdrawn) {
			return true
		}
	}
	return false
}
