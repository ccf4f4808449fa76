// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
)

// occupancy is what is known of a GPU at one moment, for the question which of its devices can be allocated.
type occupancy struct {
	offer     *policy.Offer
	records   gpuRecords
	conflicts []conflict
	// claimed are the partitions of claims, others those that neither a claim nor the scheduler of this driver name knows of.
	claimed []gpu.Partition
	others  []gpu.Shape
}

// Occupied lists the devices, by name, that cannot be allocated though they are not: an unclaimed partition is in their place
// or has their engines, one that a claim gave back cannot be destroyed yet, or one of a layout has not been created yet.
func (p *Partitions) Occupied() []string {
	b := p.gate.backend.Load()
	if b.hardware == nil {
		return nil
	}
	var names []string
	node := b.hardware.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		now := p.occupancyOf(g)
		now.offer = node.Offer(g)
		for _, s := range now.offer.Shapes(g) {
			if p.occupied(s, now) {
				names = append(names, s.Name())
			}
		}
	}
	return names
}

func (p *Partitions) occupancyOf(g *gpu.GPU) occupancy {
	name := g.PCI.DeviceName()
	o := occupancy{records: p.ledger.index.on(name, ""), conflicts: p.ledger.conflicts(name), claimed: p.ledger.names.partitionsOf(name)}
	o.others = shapesOf(g, append(slices.Clone(p.unclaimed.of(name)), placesOfConflicts(o.conflicts)...))
	return o
}

// placesOfConflicts are the partitions among conflicts, each place once.
func placesOfConflicts(all []conflict) []gpu.Partition {
	var parts []gpu.Partition
	for _, c := range all {
		if c.place == nil {
			continue
		}
		if part := (gpu.Partition{ProfileID: c.place.ProfileID, Placement: c.place.Placement}); !containsPlace(parts, part) {
			parts = append(parts, part)
		}
	}
	return parts
}

// occupied is Occupied for one shape.
func (p *Partitions) occupied(s gpu.Shape, now occupancy) bool {
	want := extentOfShape(s)
	lies := p.occupantOf(now.offer, want)
	if lies.blocks() || now.records.releasing(want) || conflictWith(now.conflicts, want) != nil {
		return true
	}
	if lies.offered {
		return false
	}
	missing := s.IsPartition() && now.offer.PartitionMode() == policy.Layout &&
		!slices.ContainsFunc(now.claimed, func(part gpu.Partition) bool { return want.is(part) })
	return missing || !s.FitsBeside(now.others)
}

// shapesOf are partitions of a GPU as shapes; one of a profile that the GPU does not name is left out.
func shapesOf(g *gpu.GPU, parts []gpu.Partition) []gpu.Shape {
	var shapes []gpu.Shape
	for _, p := range parts {
		for i := range g.MIG.Profiles {
			if g.MIG.Profiles[i].ID == p.ProfileID {
				shapes = append(shapes, gpu.Shape{GPU: g, Profile: &g.MIG.Profiles[i], Placement: p.Placement})
			}
		}
	}
	return shapes
}
