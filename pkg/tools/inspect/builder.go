// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// builder builds the view of one GPU of a machine.
type builder struct {
	hardware *Hardware
	gpu      *gpu.GPU
	offer    *policy.Offer
	view     *GPU
	shapes   []gpu.Shape // the first of the view's, by index
	// full are the GPU's counters, left those that no allocation or partition consumes.
	full, left resourcepool.Stock
	// there are the partitions that block others.
	there []occupant
}

// occupant is a partition that exists or should.
type occupant struct {
	gpu.Place
	state PartitionState
}

// own calls f for each device of the GPU in a record.
func (b *builder) own(f func(r *records.Record, d *records.Device)) {
	for _, r := range b.hardware.Records {
		for i := range r.Devices {
			if d := &r.Devices[i]; d.GPU == b.view.Device && !d.Released {
				f(r, d)
			}
		}
	}
}

// claims adds the allocations of the GPU, except those that are being released. A whole GPU that is released is used by processes
// that its claim has left.
func (b *builder) claims() {
	b.own(func(r *records.Record, d *records.Device) {
		if r.State == records.Releasing {
			if d.Partition == nil && d.Share == nil && !d.AdminAccess {
				b.left = resourcepool.Stock{}
				b.view.Notes = append(b.view.Notes, fmt.Sprintf("claim %s/%s has ended, and its pods have left processes: the GPU is "+
					"allocated again once they end", r.Claim.Namespace, r.Claim.Name))
			}
			return
		}
		s := b.shape(d)
		h := b.hardware.claimOf(r, d)
		s.Claims = append(s.Claims, h)
		if h.Has != nil && s.isShared() {
			s.use(*h.Has)
		}
		if d.Partition == nil && !d.AdminAccess {
			b.left = resourcepool.Stock{} // the whole GPU
		}
	})
}

func claimOf(r *records.Record, d *records.Device) Claim {
	h := Claim{Claim: r.Claim.Namespace + "/" + r.Claim.Name, UID: string(r.Claim.UID), AdminAccess: d.AdminAccess}
	if d.Share != nil {
		h.Interval = d.Share.Interval
	}
	if d.Share != nil && !d.Share.Exclusive {
		h.Has = &Amounts{Shares: d.Share.Shares, MemoryBytes: d.Share.Memory, CoresPercent: d.Share.Cores}
	}
	return h
}

// shape returns the shape of a claim's device. It adds one that the policy does not offer.
func (b *builder) shape(d *records.Device) *Shape {
	for i := range b.view.Shapes {
		if b.view.Shapes[i].Device == d.Device {
			return &b.view.Shapes[i]
		}
	}
	s, by := Shape{Device: d.Device}, gpu.Share("")
	if d.Partition != nil {
		at := d.Partition.Placement
		s.Profile, s.Placement = b.gpu.MIG.ProfileName(d.Partition.ProfileID), &at
	}
	if d.IsShared() {
		by, s.Total = d.Share.Kind, &Amounts{}
	}
	s.Type = string(gpu.TypeOf(d.Partition != nil, by))
	b.view.Shapes = append(b.view.Shapes, s)
	return &b.view.Shapes[len(b.view.Shapes)-1]
}

// partitions adds existing partitions, and those that claims should have.
func (b *builder) partitions() {
	exist := b.hardware.Partitions[b.gpu.PCI]
	for _, p := range exist {
		state, by := b.claimsOn(p.Place())
		if state == "" {
			state = b.unclaimed(p)
		}
		if state == PartitionUnmanaged {
			b.view.Notes = append(b.view.Notes, b.unmanaged(p))
		}
		b.enter(p, state, by)
		b.view.Partitions[len(b.view.Partitions)-1].GI = &p.GI
	}
	b.own(func(r *records.Record, d *records.Device) {
		if d.Partition == nil || d.AdminAccess ||
			slices.ContainsFunc(exist, func(p gpu.Partition) bool { return p.Place() == d.Partition.Place() }) {
			return
		}
		entered := func(p Partition) bool {
			return p.ProfileID == d.Partition.ProfileID && p.Placement == d.Partition.Placement
		}
		if at := slices.IndexFunc(b.view.Partitions, entered); at >= 0 { // for another claim that shares it
			b.view.Partitions[at].Claims = append(b.view.Partitions[at].Claims, b.hardware.claimOf(r, d))
			return
		}
		switch r.State {
		case records.Preparing:
			b.enter(*d.Partition, PartitionPreparing, []Claim{b.hardware.claimOf(r, d)})
		case records.Prepared:
			b.enter(*d.Partition, PartitionMissing, []Claim{b.hardware.claimOf(r, d)})
			b.view.Notes = append(b.view.Notes,
				fmt.Sprintf("claim %s/%s is allocated %s, which does not exist: it was destroyed outside of Cleave, "+
					"or the plugin has not run since the node booted; delete the claim's pods", r.Claim.Namespace, r.Claim.Name, d.Device))
		case records.Releasing: // it is destroyed, as intended
		}
	})
}

// unmanaged is the note about an unmanaged partition.
func (b *builder) unmanaged(p gpu.Partition) string {
	if b.hardware.NoRecords != "" {
		return fmt.Sprintf("the owner of GPU instance %d is unknown: the plugin has no records in %s; it has never run here, "+
			"or --kubelet-plugins-dir or --driver-name differs", p.GI, b.hardware.NoRecords)
	}
	return fmt.Sprintf("GPU instance %d is unmanaged and blocks what it overlaps; to destroy it: nvidia-smi mig -i %s -dci -gi %d, "+
		"then the same with -dgi", p.GI, b.gpu.PCI, p.GI)
}

func (b *builder) enter(p gpu.Partition, state PartitionState, by []Claim) {
	b.view.Partitions = append(b.view.Partitions, Partition{
		Profile: b.gpu.MIG.ProfileName(p.ProfileID), ProfileID: p.ProfileID, Placement: p.Placement, State: state, UUID: p.UUID, Claims: by,
	})
	b.there = append(b.there, occupant{p.Place(), state})
}

// claimsOn returns the state of a partition and the claims that are allocated its place; empty if there is none.
func (b *builder) claimsOn(place gpu.Place) (state PartitionState, by []Claim) {
	b.own(func(r *records.Record, d *records.Device) {
		if d.Partition == nil || d.AdminAccess || d.Partition.Place() != place {
			return
		}
		switch {
		case r.State == records.Prepared:
			state = PartitionAllocated
		case state == PartitionAllocated: // by another claim that shares it
		case r.State == records.Preparing:
			state = PartitionPreparing
		default:
			state = PartitionReleasing
		}
		by = append(by, b.hardware.claimOf(r, d))
	})
	return state, by
}

// unclaimed returns the state of a partition without a claim.
func (b *builder) unclaimed(p gpu.Partition) PartitionState {
	if mode := b.offer.PartitionMode(); mode == policy.Layout || mode == policy.Existing {
		if b.offer.Partitions.Has(p.Place()) && p.CI != nil {
			return PartitionReady
		}
	}
	for _, l := range b.hardware.Layouts {
		if l.GPU == b.view.Device && l.UUID == b.gpu.UUID && l.Has(p.Place()) {
			return PartitionIdle
		}
	}
	return PartitionUnmanaged
}

// obstruct subtracts the counters of existing partitions and marks the shapes that they block.
func (b *builder) obstruct() {
	for _, p := range b.there {
		if profile := b.gpu.MIG.Profile(p.ProfileID); profile != nil {
			b.left.Take(stockOf(gpu.Shape{GPU: b.gpu, Profile: profile, Placement: p.Placement}.Consumes()))
		}
	}
	for i, shape := range b.shapes {
		s := &b.view.Shapes[i]
		if s.isAllocated() {
			continue
		}
		at := slices.IndexFunc(b.there, func(p occupant) bool { return !shape.IsPartition() || shape.Placement.Overlaps(p.Placement) })
		switch {
		case at >= 0 && shape.IsPartition() && b.there[at] == occupant{shape.Place(), PartitionReady}:
			s.ready = true
		case at >= 0:
			s.State = Blocked
		case shape.IsPartition() && b.offer.PartitionMode() == policy.Layout:
			s.State = Blocked // it is not created yet
		}
	}
}
