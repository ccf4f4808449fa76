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
	// Offers of the GPUs, by their index. An empty list stands for Unrestricted.
	Offers []Offer
}

// Unrestricted is the offer of a GPU without a policy: the whole GPU, and partitions on demand.
func Unrestricted(g *gpu.GPU) Offer {
	return Offer{Whole: true, Partitions: &PartitionOffer{Mode: OnDemand, Profiles: profilesByDefault(g, nil)}}
}

// Offer returns the offer of a GPU of the node; an empty one for an unknown GPU.
func (n *Node) Offer(g *gpu.GPU) *Offer {
	if n.Offers == nil {
		o := Unrestricted(g)
		return &o
	}
	for i := range n.GPUs {
		if n.GPUs[i].PCI == g.PCI {
			return &n.Offers[i]
		}
	}
	return &Offer{}
}

// Shapes are those that a GPU of the node currently offers.
func (n *Node) Shapes(g *gpu.GPU) []gpu.Shape { return n.Offer(g).Shapes(g) }

// FindShape returns the offered shape with a device name.
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

// Offer is how a GPU is offered.
type Offer struct {
	// Excluded reports that the policy leaves the GPU to other drivers. Devices that are still allocated are offered as withdrawn.
	Excluded bool
	Whole    bool
	// Partitions is nil if the GPU is not partitioned for claims.
	Partitions *PartitionOffer
	// TimeSlice and MPS are nil if the GPU is not shared that way.
	TimeSlice, MPS *Sharing
	// Withdrawn are tiers that the policy no longer has, but that still have allocations. Their devices are published, but cannot
	// be allocated.
	Withdrawn gpu.Tiers
	// NoPartitions, NoTimeSlice and NoMPS are why a tier of the policy is not offered; empty if it is, or if the policy does not
	// have it.
	NoPartitions, NoTimeSlice, NoMPS string
	// Uncounted reports that the cluster drops the counters of the GPU.
	Uncounted bool
	// NotShared is why partitions are not shared as the policy wants.
	NotShared []string
	// Health configures the handling of an unhealthy GPU.
	Health Health
	// WantsMIG is the MIG mode to which an idle GPU is reset; nil to leave its mode.
	WantsMIG *bool
	// PauseClients are the labels of clients that may be stopped for a reset of the GPU.
	PauseClients []string
	// Publish selects the GPU's attributes and counters in slices.
	Publish Publish
}

// Publish selects a GPU's attributes and counters in slices.
type Publish struct {
	// Attributes that partitions have in addition, and OmitAttributes that they lack; by name.
	Attributes, OmitAttributes []string
	// Counters are the published amounts of the GPU, for quotas.
	Counters []string
}

// Health configures the handling of an unhealthy GPU.
type Health struct {
	// Effect of the taint on its devices: "NoSchedule", "NoExecute", or "None", which only reports; empty for "NoSchedule".
	Effect string
	// IgnoreXIDs are only counted, like those that applications cause by themselves.
	IgnoreXIDs []int
}

// MIGMode is how a GPU is partitioned; its values are those of a policy's mig.mode.
type MIGMode string

// The modes.
const (
	// OnDemand: a partition is created for a claim and destroyed afterwards.
	OnDemand MIGMode = "onDemand"
	// Layout: the GPU is kept partitioned in one way, ahead of claims.
	Layout MIGMode = "layout"
	// Existing: unmanaged partitions are offered as they are, and none is ever created or destroyed.
	Existing MIGMode = "existing"
)

// PartitionOffer is the offered partitions of a GPU.
type PartitionOffer struct {
	Mode MIGMode
	// Profiles are the IDs of those offered OnDemand; nil for all of the board.
	Profiles []int
	// Places of a Layout, or of the partitions found in mode Existing: no others are offered.
	Places []gpu.Place
	// DisableWhenIdle switches MIG mode off once the last partition is destroyed.
	DisableWhenIdle bool
	// Kept are allocated places that the policy no longer has: offered as withdrawn.
	Kept []gpu.Place
	// Shared are the profiles and ways in which partitions are shared, in order of the policy. OnDemand they need not be among
	// Profiles.
	Shared []PartitionSharing
	// KeptShared are allocated places of shared partitions that the policy no longer has: offered as withdrawn.
	KeptShared []gpu.SharedPlace
}

// NoPlaces is an offer of nothing new: only of allocated partitions, until they are released.
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

// PartitionMode is how the GPU is partitioned; empty if it offers no partitions.
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

// Spreads reports whether shares of the GPU, or of its partitions, go to where the fewest claims are.
func (o *Offer) Spreads() bool {
	return o.TimeSlice != nil && o.TimeSlice.Spread || o.MPS != nil && o.MPS.Spread ||
		o.Partitions != nil && slices.ContainsFunc(o.Partitions.Shared, func(s PartitionSharing) bool { return s.Sharing.Spread })
}

// IsWithdrawn reports whether the policy no longer has the shape, while it or something like it is still allocated.
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
// If the MIG mode changes without a reset, a GPU offers everything and the mode follows allocations. If it needs a reset, which is
// up to the admin, the current mode decides: partitions or the whole GPU.
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
