// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Node is an inventory with what its GPUs offer.
type Node struct {
	*gpu.Node
	// Offers of the GPUs, by their index. None at all stand for Unrestricted.
	Offers []Offer
}

// Unrestricted is what a GPU offers without a policy: the whole of it, and partitions on demand.
func Unrestricted() Offer {
	return Offer{Whole: true, Partitions: &PartitionOffer{Mode: OnDemand}}
}

// Offer is what a GPU of the node offers. A GPU that the node does not have offers nothing.
func (n *Node) Offer(g *gpu.GPU) *Offer {
	if n.Offers == nil {
		o := Unrestricted()
		return &o
	}
	for i := range n.GPUs {
		if n.GPUs[i].PCI == g.PCI {
			return &n.Offers[i]
		}
	}
	return &Offer{}
}

// Shapes are those that a GPU of the node offers now.
func (n *Node) Shapes(g *gpu.GPU) []gpu.Shape { return n.Offer(g).Shapes(g) }

// FindShape returns what a GPU of the node offers under a device name.
func (n *Node) FindShape(device string) (gpu.Shape, bool) {
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if !strings.HasPrefix(device, g.PCI.DeviceName()) {
			continue
		}
		for _, s := range n.Shapes(g) {
			if s.Name() == device {
				return s, true
			}
		}
	}
	return gpu.Shape{}, false
}

// Offer is what a GPU is offered as.
type Offer struct {
	// Excluded reports that the policy leaves the GPU to others. What is still allocated of it is offered, withdrawn.
	Excluded bool
	Whole    bool
	// Partitions is nil where the GPU is not partitioned for claims.
	Partitions *PartitionOffer
	// TimeSlice and MPS are nil where the GPU is not shared so.
	TimeSlice, MPS *Sharing
	// Withdrawn are the tiers that the policy has no more though something of them is allocated. Their devices are
	// offered, but not to be allocated.
	Withdrawn gpu.Tiers
	// NoPartitions, NoTimeSlice and NoMPS say why a tier of the policy is not offered; empty where it is, or where the
	// policy has none.
	NoPartitions, NoTimeSlice, NoMPS string
	// Uncounted reports that the cluster drops the counters of the GPU.
	Uncounted bool
	// NotShared says why partitions are not shared as the policy wants.
	NotShared []string
	// Health is what is done when the GPU is unhealthy.
	Health Health
	// WantsMIG is the MIG mode for which an idle GPU is reset; nil where its mode is taken as found.
	WantsMIG *bool
	// Publish is what slices carry of the GPU.
	Publish Publish
}

// Publish is what slices carry of a GPU.
type Publish struct {
	// Attributes that partitions carry in addition, OmitAttributes those that they do not; by name.
	Attributes, OmitAttributes []string
	// Counters are those of amounts that the GPU has, for quotas.
	Counters []string
}

// Health is what is done when a GPU is unhealthy.
type Health struct {
	// Effect of the taint on its devices: "NoSchedule", "NoExecute", or "None", which only reports; empty for "NoSchedule".
	Effect string
	// IgnoreXIDs are only counted, like those that applications cause by themselves.
	IgnoreXIDs []int
}

// MIGMode is how a GPU's partitions come to be; its values are those of a policy's mig.mode.
type MIGMode string

// The modes.
const (
	// OnDemand: a partition is created when a claim needs it and destroyed after.
	OnDemand MIGMode = "onDemand"
	// Layout: the GPU is kept partitioned in one way, ahead of claims.
	Layout MIGMode = "layout"
	// Existing: unmanaged partitions are offered as they are, and none is ever created or destroyed.
	Existing MIGMode = "existing"
)

// PartitionOffer is which partitions of a GPU are offered.
type PartitionOffer struct {
	Mode MIGMode
	// Profiles are the IDs of those offered OnDemand; nil for the whole catalog.
	Profiles []int
	// Places of a Layout, or those of the partitions that are there in mode Existing: no others are offered.
	Places []gpu.Place
	// DisableWhenIdle has MIG mode switched off once the last partition is destroyed.
	DisableWhenIdle bool
	// Kept are places that are allocated and that the policy has no more: offered, withdrawn.
	Kept []gpu.Place
	// Shared are the profiles and ways in which partitions are shared, in order of the policy. OnDemand they need not be among
	// Profiles.
	Shared []PartitionSharing
	// KeptShared are places of shared partitions that are allocated and that the policy has no more: offered, withdrawn.
	KeptShared []gpu.SharedPlace
}

// NoPlaces is an offer of nothing new: of partitions that are allocated and that go when they are released.
func NoPlaces(kept []gpu.Place) *PartitionOffer {
	return &PartitionOffer{Mode: OnDemand, Profiles: []int{}, Kept: kept}
}

// Has reports whether the policy has a partition at a place, of a profile of the catalog.
func (o *PartitionOffer) Has(at gpu.Place) bool {
	if o.Mode == OnDemand {
		return o.Profiles == nil || slices.Contains(o.Profiles, at.ProfileID)
	}
	return slices.Contains(o.Places, at)
}

// offers reports whether there is a device for a place.
func (o *PartitionOffer) offers(at gpu.Place) bool {
	return o.Has(at) || slices.Contains(o.Kept, at)
}

// offersShared reports whether there is a device for a shared partition.
func (o *PartitionOffer) offersShared(at gpu.SharedPlace) bool {
	return o.HasShared(at) || slices.Contains(o.KeptShared, at)
}

// PartitionMode is how the GPU's partitions come to be; empty where it has none to offer.
func (o *Offer) PartitionMode() MIGMode {
	if o.Partitions == nil {
		return ""
	}
	return o.Partitions.Mode
}

// Sharing is how a shape is shared, or nil.
func (o *Offer) Sharing(s gpu.Shape) *Sharing {
	switch {
	case s.IsPartition() && s.IsShare() && o.Partitions != nil:
		if sharing := o.Partitions.sharing(s.Profile.ID, s.Share); sharing != nil {
			return &sharing.Sharing
		}
		return nil
	case s.IsPartition():
		return nil
	case s.Share == gpu.TimeSlice:
		return o.TimeSlice
	case s.Share == gpu.MPS:
		return o.MPS
	default:
		return nil
	}
}

// IsWithdrawn reports whether the policy has the shape no more, while it or something like it is still allocated.
func (o *Offer) IsWithdrawn(s gpu.Shape) bool {
	switch {
	case s.IsPartition() && s.IsShare():
		return o.Partitions != nil && !o.Partitions.HasShared(s.SharedPlace())
	case s.IsPartition():
		return o.Partitions != nil && !o.Partitions.Has(s.Place())
	case s.Share == gpu.TimeSlice:
		return o.Withdrawn.TimeSlice
	case s.Share == gpu.MPS:
		return o.Withdrawn.MPS
	default:
		return o.Withdrawn.Whole
	}
}

// Shapes are all that a GPU with this offer offers now: the whole GPU, then shared devices, then partitions in order of
// size, profile ID and start, each followed by the ways in which it is shared.
//
// Where the MIG mode changes without a reset, a GPU offers everything and the mode follows what is allocated. Where it
// needs a reset, which is the admin's to do, the mode that is found decides: partitions or the whole GPU.
func (o *Offer) Shapes(g *gpu.GPU) []gpu.Shape {
	var shapes []gpu.Shape
	if g.CanBeWhole() {
		if o.Whole {
			shapes = append(shapes, g.Whole())
		}
		for _, share := range gpu.Shares() {
			if s := g.Whole().Shared(share); o.Sharing(s) != nil {
				shapes = append(shapes, s)
			}
		}
	}
	if o.Partitions == nil || g.MIG.Fixed && o.Partitions.Mode != Existing {
		return shapes
	}
	for _, s := range g.PartitionShapes() {
		if o.Partitions.offers(s.Place()) {
			shapes = append(shapes, s)
		}
		for _, share := range gpu.Shares() {
			if s = s.Shared(share); o.Partitions.offersShared(s.SharedPlace()) {
				shapes = append(shapes, s)
			}
		}
	}
	return shapes
}
