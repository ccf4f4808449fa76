// SPDX-License-Identifier: Apache-2.0

package gpu

import "slices"

// Offer is what a GPU is handed out as.
type Offer struct {
	// Excluded tells that the policy leaves the GPU to others. What claims still hold of it is offered, withdrawn.
	Excluded bool
	Whole    bool
	// Partitions is nil where the GPU is not partitioned for claims.
	Partitions *PartitionOffer
	// TimeSlice and MPS are nil where the GPU is not shared so.
	TimeSlice, MPS *Sharing
	// Withdrawn are the tiers that the policy has no more though claims still hold something of them. Their devices are
	// offered, but not to be handed out.
	Withdrawn Tiers
	// NoPartitions, NoTimeSlice and NoMPS say why a tier of the policy is not offered; empty where it is, or where the
	// policy has none.
	NoPartitions, NoTimeSlice, NoMPS string
	// Health is what is done when the GPU is in trouble.
	Health Health
}

// Health is what is done when a GPU is in trouble.
type Health struct {
	// Effect of the taint on its devices: "NoSchedule", "NoExecute", or "None", which only reports; empty for "NoSchedule".
	Effect string
	// IgnoreXIDs are only counted, beside those that applications cause by themselves.
	IgnoreXIDs []int
}

// Tiers are ways to hand out a GPU as a whole.
type Tiers struct {
	Whole, TimeSlice, MPS bool
}

// Held is what claims hold of a GPU.
type Held struct {
	Tiers
	// Places of partitions.
	Places []Place
}

// MIGMode is how a GPU's partitions come to be; its values are those of a policy's mig.mode.
type MIGMode string

// The modes.
const (
	// OnDemand: a partition is made when a claim needs it and unmade after.
	OnDemand MIGMode = "onDemand"
	// Layout: the GPU is kept cut in one way, ahead of claims.
	Layout MIGMode = "layout"
	// Existing: the partitions that somebody else made are handed out as they are, and none is ever made or unmade.
	Existing MIGMode = "existing"
)

// Place is where a partition of a profile lies or may lie.
type Place struct {
	ProfileID int       `json:"profileID"`
	Placement Placement `json:"placement"`
}

// PartitionOffer is which partitions of a GPU are handed out.
type PartitionOffer struct {
	Mode MIGMode
	// Profiles are the IDs of those offered OnDemand; nil for the whole catalog.
	Profiles []int
	// Places of a Layout, or those of the partitions that are there in mode Existing: no others are offered.
	Places []Place
	// DisableWhenIdle has MIG mode switched off once the last partition is destroyed.
	DisableWhenIdle bool
	// Kept are places that claims hold and the policy has no more: offered, withdrawn.
	Kept []Place
}

// NoPlaces is an offer of nothing new: of partitions that claims hold and that go when they are given back.
func NoPlaces(kept []Place) *PartitionOffer {
	return &PartitionOffer{Mode: OnDemand, Profiles: []int{}, Kept: kept}
}

// Place of a partition.
func (p Partition) Place() Place { return Place{p.ProfileID, p.Placement} }

// Place of a shape that is a partition.
func (s Shape) Place() Place { return Place{s.Profile.ID, s.Placement} }

// Has tells whether the policy has a partition at a place, of a profile of the catalog.
func (o *PartitionOffer) Has(at Place) bool {
	if o.Mode == OnDemand {
		return o.Profiles == nil || slices.Contains(o.Profiles, at.ProfileID)
	}
	return slices.Contains(o.Places, at)
}

// offers tells whether there is a device for a place.
func (o *PartitionOffer) offers(at Place) bool {
	return o.Has(at) || slices.Contains(o.Kept, at)
}

// offer is what the GPU offers by policy.
func (g *GPU) offer() Offer {
	if g.Offer == nil {
		return Offer{Whole: true, Partitions: &PartitionOffer{Mode: OnDemand}}
	}
	return *g.Offer
}

// PartitionMode is how the GPU's partitions come to be; empty where it has none to offer.
func (g *GPU) PartitionMode() MIGMode {
	if o := g.offer().Partitions; o != nil {
		return o.Mode
	}
	return ""
}

// Withdrawn tells whether the policy has the shape no more, while a claim still holds it or something like it.
func (s Shape) Withdrawn() bool {
	switch o := s.GPU.offer(); {
	case s.IsPartition():
		return o.Partitions != nil && !o.Partitions.Has(s.Place())
	case s.Share == TimeSlice:
		return o.Withdrawn.TimeSlice
	case s.Share == MPS:
		return o.Withdrawn.MPS
	default:
		return o.Withdrawn.Whole
	}
}
