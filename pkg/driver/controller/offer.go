// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"reflect"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// startWithdrawal remembers what the GPUs offered under the policy that was active when the plugin last exited, if another replaces
// it. Later changes show in the published slices.
func (p *Plan) startWithdrawal(o *Observed, was *Policy) {
	if was == nil || o.Memory.Published != nil {
		return
	}
	before := o.Memory.Offered
	if before == nil {
		before = policy.Apply(rulesOf(was), o.Inventory, p.capabilities(o))
		addWithdrawn(before, p.Memory.Before, nil)
	}
	for i := range before.GPUs {
		if len(before.Shapes(&before.GPUs[i])) > 0 {
			p.Memory.Previous, p.Memory.Withdrawal = before, withdrawal{}
			return
		}
	}
}

// offer decides what each GPU offers.
func (p *Plan) offer(o *Observed) {
	node := policy.Apply(rulesOf(p.Memory.Active), o.Inventory, p.capabilities(o))
	withdrawals{p}.withdraw(o, node)
	p.Offer, p.Memory.Offered = node, node
	if p.Memory.Previous == nil { // otherwise a restart must begin with the withdrawal, too
		p.Keep = p.Memory.Active
	}
}

// capabilities describes what the node supports beyond its GPUs.
func (p *Plan) capabilities(o *Observed) policy.Capabilities {
	caps := policy.Capabilities{
		Shares: o.Counted.Shares, SharesBeside: o.Counted.SharesBeside, Counters: o.Counted.Counters,
		CgroupMemory: func(g *gpu.GPU) bool { return o.MemoryLimits[g.PCI] },
		Allocated:    records.AllocatedOf(o.Allocations),
		Partitions:   func(g *gpu.GPU) []gpu.Place { return o.Unclaimed[g.PCI] },
		Layout:       p.layoutBefore(o),
	}
	if !p.offersMPS(o) {
		caps.MPS = o.MPS
	}
	return caps
}

// layoutBefore returns the places at which the layout of a GPU was last published, or is recorded, in any boot.
func (p *Plan) layoutBefore(o *Observed) func(g *gpu.GPU) []gpu.Place {
	return func(g *gpu.GPU) []gpu.Place {
		if published := p.Memory.Published; published != nil {
			if offer := published.Node.Offer(g); offer.PartitionMode() == policy.Layout {
				return offer.Partitions.Places
			}
		}
		return o.Layouts[g.PCI]
	}
}

// addWithdrawn adds to a node, as withdrawn, the devices that it offered before and no longer does: all, or only those of some
// names. before may be nil.
func addWithdrawn(node, before *policy.Node, only map[string]bool) {
	if before == nil {
		return
	}
	for i := range node.GPUs {
		was := before.Find(node.GPUs[i].PCI.DeviceName())
		if was == nil {
			continue
		}
		now, then := &node.Offers[i], before.Offer(was)
		for _, s := range before.Shapes(was) {
			switch {
			case only != nil && !only[s.Name()]:
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

// offerChanged reports whether the offer differs from the one under which the node was observed.
func (p *Plan) offerChanged(o *Observed) bool { return !reflect.DeepEqual(o.Memory.Offered, p.Offer) }

// hasWithdrawn reports whether a device is offered only because it is allocated, or was offered before.
func hasWithdrawn(node *policy.Node) bool {
	for i := range node.GPUs {
		if g := &node.GPUs[i]; slices.ContainsFunc(node.Shapes(g), node.Offer(g).IsWithdrawn) {
			return true
		}
	}
	return false
}
