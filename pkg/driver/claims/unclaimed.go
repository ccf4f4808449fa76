// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// unclaimed are the partitions that were not created for a claim, by the device name of their GPU, as last seen: unmanaged
// ones, and those of layouts.
type unclaimed struct {
	mu    sync.Mutex
	byGPU map[string][]gpu.Partition
}

// of lists the unclaimed partitions of a GPU; the list must not be changed.
func (u *unclaimed) of(gpuDevice string) []gpu.Partition {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.byGPU[gpuDevice]
}

func (u *unclaimed) set(gpuDevice string, parts []gpu.Partition) (changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byGPU == nil {
		u.byGPU = map[string][]gpu.Partition{}
	}
	changed = !slices.EqualFunc(u.byGPU[gpuDevice], parts, samePlace)
	u.byGPU[gpuDevice] = parts
	return changed
}

func (u *unclaimed) remove(gpuDevice string, part gpu.Partition) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.byGPU[gpuDevice] = slices.DeleteFunc(slices.Clone(u.byGPU[gpuDevice]), func(p gpu.Partition) bool { return samePlace(p, part) })
}

// occupant is an unclaimed partition in the place of a device, as last seen.
type occupant struct {
	// partition is nil if there is none.
	partition *gpu.Partition
	// offered: it is exactly the partition of the device, and the policy offers it as it is.
	offered bool
}

// blocks reports whether the occupant prevents the device from being allocated.
func (o occupant) blocks() bool { return o.partition != nil && !o.offered }

// occupantOf returns the occupant of a device's place, given the GPU's unclaimed partitions and its offer.
func occupantOf(all []gpu.Partition, offer *policy.Offer, want extent) occupant {
	i := slices.IndexFunc(all, func(part gpu.Partition) bool { return want.collides(extentAt(want.gpu, part.Place())) })
	if i < 0 {
		return occupant{}
	}
	return occupant{&all[i], want.is(all[i]) && all[i].CI != nil && offersExisting(offer)}
}

// offersExisting reports whether the policy offers the unclaimed partitions of a GPU as they are.
func offersExisting(offer *policy.Offer) bool {
	mode := offer.PartitionMode()
	return mode == policy.Layout || mode == policy.Existing
}

// FindUnmanaged looks for partitions that were not created for a claim. Those that do not belong to a layout are unmanaged: they are
// remembered, and never touched.
func (p *Partitions) FindUnmanaged(ctx context.Context) {
	b := p.gate.backend.Load()
	if b.hardware == nil {
		return
	}
	node := b.hardware.Node()
	for i := range node.GPUs {
		if err := p.scan(ctx, b, &node.GPUs[i]); err != nil {
			klog.FromContext(ctx).Error(err, "Could not look for unmanaged partitions", "gpu", node.GPUs[i].PCI.DeviceName())
		}
	}
}

// scan looks for partitions of a GPU that no record names.
func (p *Partitions) scan(ctx context.Context, b *backend, g *gpu.GPU) error {
	if len(g.MIG.Profiles) == 0 || p.ledger.isChanging(g.PCI.DeviceName()) {
		return nil
	}
	held, err := p.ledger.lockFor(ctx, "", []string{g.PCI.DeviceName()})
	if err != nil {
		return err
	}
	defer held.Release()
	all, err := b.hardware.Partitions(ctx, g)
	if err != nil {
		return err
	}
	err = renewLayout(p.ledger, g, all)
	p.note(ctx, g, all)
	return err
}

// note remembers the unclaimed partitions of a GPU; the caller holds its lock.
func (p *Partitions) note(ctx context.Context, g *gpu.GPU, all []gpu.Partition) {
	name := g.PCI.DeviceName()
	layout, claimed := p.ledger.layout(name), p.ledger.partitionsOf(name)
	parts := slices.DeleteFunc(all, func(part gpu.Partition) bool { return containsPlace(claimed, part) })
	if p.unclaimed.set(name, parts) {
		own := len(slices.DeleteFunc(slices.Clone(parts), func(part gpu.Partition) bool { return !layout.Has(part.Place()) }))
		klog.FromContext(ctx).Info("Unclaimed partitions", "gpu", name, "ofLayout", own, "unmanaged", len(parts)-own)
	}
}

func containsPlace(all []gpu.Partition, p gpu.Partition) bool {
	return slices.ContainsFunc(all, func(o gpu.Partition) bool { return samePlace(o, p) })
}

// Existing is a partition that exists before a claim gets it.
type Existing struct {
	Device, UUID string
}

// Existing lists the existing partitions that can be allocated, in order of the devices.
func (p *Partitions) Existing() []Existing {
	b := p.gate.backend.Load()
	if b.hardware == nil {
		return nil
	}
	var all []Existing
	node := b.hardware.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		offer := node.Offer(g)
		if !offersExisting(offer) {
			continue
		}
		for _, s := range offer.Shapes(g) {
			if o := occupantOf(p.unclaimed.of(g.PCI.DeviceName()), offer, extentOfShape(s)); o.offered {
				all = append(all, Existing{s.Name(), o.partition.UUID})
			}
		}
	}
	return all
}

// Unclaimed returns the places of a GPU's unclaimed partitions that are complete, in order of their GPU
// instances.
func (p *Partitions) Unclaimed(g *gpu.GPU) []gpu.Place {
	var places []gpu.Place
	for _, part := range p.unclaimed.of(g.PCI.DeviceName()) {
		if part.CI != nil {
			places = append(places, part.Place())
		}
	}
	return places
}
