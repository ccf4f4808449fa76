// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// occupancy is what is known of a GPU at one moment, for the question which of its devices can be allocated.
type occupancy struct {
	offer     *policy.Offer
	records   gpuRecords
	conflicts []conflict
	// unclaimed are its partitions that were created for no claim, claimed those of claims.
	unclaimed, claimed []gpu.Partition
	// refused reports whether the driver creates no partition in a place.
	refused func(gpu.Place) bool
	// others are the partitions that neither a claim of this driver name has nor its scheduler knows of.
	others []gpu.Shape
}

// Occupied lists the devices, by name, that cannot be allocated though they are not: an unclaimed partition is in their place
// or has their engines, one that a claim gave back cannot be destroyed yet, one of a layout has not been created yet, or the driver
// has refused to create one.
func (p *Partitions) Occupied() []string {
	b := p.gate.backend.Load()
	if b.hardware == nil {
		return nil
	}
	var names []string
	node := b.hardware.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		now := p.occupancyOf(g, node.Offer(g))
		for _, s := range now.offer.Shapes(g) {
			if now.occupied(s) {
				names = append(names, s.Name())
			}
		}
	}
	return names
}

func (p *Partitions) occupancyOf(g *gpu.GPU, offer *policy.Offer) occupancy {
	name := g.PCI.DeviceName()
	o := occupancy{
		offer: offer, unclaimed: p.unclaimed.of(name), claimed: p.ledger.partitionsOf(name),
		records: p.ledger.index.on(name, ""), conflicts: p.ledger.conflicts(name, p.ledger.id.Driver),
	}
	o.refused = p.refused.of(name, slices.Concat(o.unclaimed, o.claimed))
	o.others = shapesOf(g, append(slices.Clone(o.unclaimed), placesOfConflicts(o.conflicts)...))
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
func (o *occupancy) occupied(s gpu.Shape) bool {
	want := extentOfShape(s)
	lies := occupantOf(o.unclaimed, o.offer, want)
	if lies.blocks() || o.records.releasing(want) || conflictWith(o.conflicts, want) != nil {
		return true
	}
	if lies.offered {
		return false
	}
	if s.IsPartition() && o.refused(placeOf(s)) && !slices.ContainsFunc(o.claimed, want.is) {
		return true
	}
	missing := s.IsPartition() && o.offer.PartitionMode() == policy.Layout &&
		!slices.ContainsFunc(o.claimed, want.is)
	return missing || !s.FitsAlongside(o.others)
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
