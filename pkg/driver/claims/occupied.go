// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// occupancy is the state of a GPU at one moment, used to decide which of its devices can be allocated.
type occupancy struct {
	offer     *policy.Offer
	records   gpuRecords
	conflicts []conflict
	// unclaimed are its partitions that were not created for claims, claimed those that were.
	unclaimed, claimed []gpu.Partition
	// refused reports whether the driver refuses to create a partition in a place.
	refused func(gpu.Place) bool
	// others are the partitions that do not belong to claims of this driver name, and that its scheduler does not know of.
	others []gpu.Shape
}

// Occupied lists the devices, by name, that cannot be allocated although no claim has them: an unclaimed partition is in their place
// or uses their engines, a released partition cannot be destroyed yet, a partition of a layout has not been created yet, or the driver
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

// placesOfConflicts returns the partitions among conflicts, without duplicates.
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

// occupied implements Occupied for one shape.
func (o *occupancy) occupied(s gpu.Shape) bool {
	want := extentOfShape(s)
	lies := occupantOf(o.unclaimed, o.offer, want)
	if lies.blocks() || o.records.releasing(want) || conflictWith(o.conflicts, want) != nil {
		return true
	}
	if lies.offered {
		return false
	}
	if s.IsPartition() && o.refused(s.Place()) && !slices.ContainsFunc(o.claimed, want.is) {
		return true
	}
	missing := s.IsPartition() && o.offer.PartitionMode() == policy.Layout &&
		!slices.ContainsFunc(o.claimed, want.is)
	return missing || !s.FitsAlongside(o.others)
}

// shapesOf converts partitions of a GPU to shapes; it skips profiles that the GPU does not list.
func shapesOf(g *gpu.GPU, parts []gpu.Partition) []gpu.Shape {
	var shapes []gpu.Shape
	for _, p := range parts {
		if profile := g.MIG.Profile(p.ProfileID); profile != nil {
			shapes = append(shapes, gpu.Shape{GPU: g, Profile: profile, Placement: p.Placement})
		}
	}
	return shapes
}
