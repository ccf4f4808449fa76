// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"slices"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// bench is where one GPU of a machine is taken apart.
type bench struct {
	hardware *Hardware
	gpu      *gpu.GPU
	offer    *policy.Offer
	view     *GPU
	shapes   []gpu.Shape // the first of the view's, by index
	// full is what the GPU has of counters, left what nothing that is there takes.
	full, left stock
	// there are the partitions that are in the way of others.
	there []standing
}

// standing is a partition that is there, or that is to be.
type standing struct {
	gpu.Place
	state PartitionState
}

// own calls f for each device that a record has of the GPU.
func (b *bench) own(f func(r *records.Record, d *records.Device)) {
	for _, r := range b.hardware.Records {
		for i := range r.Devices {
			if d := &r.Devices[i]; d.GPU == b.view.Device {
				f(r, d)
			}
		}
	}
}

// claims enters what claims hold of the GPU. What is being given back they hold no more.
func (b *bench) claims() {
	b.own(func(r *records.Record, d *records.Device) {
		if r.State == records.Releasing {
			return
		}
		s := b.shape(d)
		h := holder(r, d)
		s.HeldBy = append(s.HeldBy, h)
		if h.Has != nil && s.isShared() {
			s.use(*h.Has)
		}
		if d.Partition == nil && !d.AdminAccess {
			b.left = stock{} // the whole of it
		}
	})
}

func holder(r *records.Record, d *records.Device) Holder {
	h := Holder{Claim: r.Claim.Namespace + "/" + r.Claim.Name, UID: string(r.Claim.UID), AdminAccess: d.AdminAccess}
	if d.Share != nil {
		h.Interval = d.Share.Interval
	}
	if d.Share != nil && !d.Share.Exclusive {
		h.Has = &Amounts{Shares: d.Share.Shares, MemoryBytes: d.Share.Memory, CoresPercent: d.Share.Cores}
	}
	return h
}

// shape finds the shape of a claim's device. One that the policy at hand does not offer is added.
func (b *bench) shape(d *records.Device) *Shape {
	for i := range b.view.Shapes {
		if b.view.Shapes[i].Device == d.Device {
			return &b.view.Shapes[i]
		}
	}
	s := Shape{Device: d.Device, Type: typeGPU}
	switch {
	case d.Partition != nil:
		at := d.Partition.Placement
		s.Type, s.Profile, s.Placement = typeMIG, b.gpu.MIG.ProfileName(d.Partition.ProfileID), &at
	case d.Share != nil && !d.Share.Exclusive:
		s.Type, s.Total = string(d.Share.Kind), &Amounts{}
	}
	b.view.Shapes = append(b.view.Shapes, s)
	return &b.view.Shapes[len(b.view.Shapes)-1]
}

// partitions enters those that exist, and those that claims should have.
func (b *bench) partitions() {
	exist := b.hardware.Partitions[b.gpu.PCI]
	for _, p := range exist {
		state, by := b.claimOf(p.Place())
		if state == "" {
			state = b.unclaimed(p)
		}
		if state == PartitionForeign {
			b.view.Notes = append(b.view.Notes, b.foreign(p))
		}
		b.enter(p, state, by)
		b.view.Partitions[len(b.view.Partitions)-1].GI = &p.GI
	}
	b.own(func(r *records.Record, d *records.Device) {
		if d.Partition == nil || d.AdminAccess || slices.ContainsFunc(exist, func(p gpu.Partition) bool { return p.Place() == d.Partition.Place() }) {
			return
		}
		switch r.State {
		case records.Preparing:
			b.enter(*d.Partition, PartitionPreparing, []Holder{holder(r, d)})
		case records.Prepared:
			b.enter(*d.Partition, PartitionMissing, []Holder{holder(r, d)})
			b.view.Notes = append(b.view.Notes, fmt.Sprintf("claim %s/%s holds %s, which does not exist: somebody destroyed it, or the node was booted "+
				"and the plugin has not run since; delete the claim's pods", r.Claim.Namespace, r.Claim.Name, d.Device))
		case records.Releasing: // it is gone, as it should be
		}
	})
}

// foreign says what can be done about a partition that nobody known made.
func (b *bench) foreign(p gpu.Partition) string {
	if b.hardware.NoRecords != "" {
		return fmt.Sprintf("whose GPU instance %d is, is not known: the plugin has no records in %s; it has never run here, or --kubelet-plugins-dir or --driver-name is another",
			p.GI, b.hardware.NoRecords)
	}
	return fmt.Sprintf("GPU instance %d is not Cleave's and blocks what it overlaps; to remove it: nvidia-smi mig -i %s -dci -gi %d, then the same with -dgi",
		p.GI, b.gpu.PCI, p.GI)
}

func (b *bench) enter(p gpu.Partition, state PartitionState, by []Holder) {
	b.view.Partitions = append(b.view.Partitions, Partition{
		Profile: b.gpu.MIG.ProfileName(p.ProfileID), ProfileID: p.ProfileID, Placement: p.Placement, State: state, UUID: p.UUID, HeldBy: by,
	})
	b.there = append(b.there, standing{p.Place(), state})
}

// claimOf tells how a partition stands to the claim that has its place; empty if none does.
func (b *bench) claimOf(place gpu.Place) (state PartitionState, by []Holder) {
	b.own(func(r *records.Record, d *records.Device) {
		if d.Partition == nil || d.AdminAccess || d.Partition.Place() != place {
			return
		}
		switch r.State {
		case records.Preparing:
			state = PartitionPreparing
		case records.Releasing:
			state = PartitionReleasing
		case records.Prepared:
			state = PartitionHeld
		}
		by = append(by, holder(r, d))
	})
	return state, by
}

// unclaimed tells what a partition is that no claim has.
func (b *bench) unclaimed(p gpu.Partition) PartitionState {
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
	return PartitionForeign
}

// obstruct takes out of the stock what partitions take that are there, and marks what cannot be had because of them.
func (b *bench) obstruct() {
	for _, p := range b.there {
		for i := range b.gpu.MIG.Profiles {
			if profile := &b.gpu.MIG.Profiles[i]; profile.ID == p.ProfileID {
				b.left.take(stockOf(gpu.Shape{GPU: b.gpu, Profile: profile, Placement: p.Placement}.Consumes()))
			}
		}
	}
	for i, shape := range b.shapes {
		s := &b.view.Shapes[i]
		if s.isHeld() {
			continue
		}
		at := slices.IndexFunc(b.there, func(p standing) bool { return !shape.IsPartition() || shape.Placement.Overlaps(p.Placement) })
		switch {
		case at >= 0 && shape.IsPartition() && b.there[at] == standing{shape.Place(), PartitionReady}:
			s.ready = true
		case at >= 0:
			s.State = Blocked
		case shape.IsPartition() && b.offer.PartitionMode() == policy.Layout:
			s.State = Blocked // it is not made yet
		}
	}
}
