// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// standingPartitions are the partitions that were not made for a claim, by the device name of their GPU, as last seen:
// those of somebody else, and those of layouts.
type standingPartitions struct {
	mu    sync.Mutex
	byGPU map[string][]gpu.Partition
}

// on returns a standing partition where a device is to be, or nil.
func (f *standingPartitions) on(d *records.Device) *gpu.Partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.byGPU[d.GPU] {
		if d.Partition == nil || d.Partition.Placement.Overlaps(p.Placement) {
			return &p
		}
	}
	return nil
}

// at returns the standing partition that is just what a shape would be, or nil.
func (f *standingPartitions) at(s gpu.Shape) *gpu.Partition {
	if !s.IsPartition() {
		return nil
	}
	for _, p := range f.of(s.GPU.PCI.DeviceName()) {
		if p.Place() == s.Place() && p.CI != nil {
			return &p
		}
	}
	return nil
}

// of lists the standing partitions of a GPU; the list must not be changed.
func (f *standingPartitions) of(gpuDevice string) []gpu.Partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byGPU[gpuDevice]
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

func (f *standingPartitions) set(gpuDevice string, parts []gpu.Partition) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byGPU == nil {
		f.byGPU = map[string][]gpu.Partition{}
	}
	changed = !slices.EqualFunc(f.byGPU[gpuDevice], parts, samePlace)
	f.byGPU[gpuDevice] = parts
	return changed
}

func (f *standingPartitions) remove(gpuDevice string, part gpu.Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byGPU[gpuDevice] = slices.DeleteFunc(slices.Clone(f.byGPU[gpuDevice]), func(p gpu.Partition) bool { return samePlace(p, part) })
}

func samePlace(a, b gpu.Partition) bool { return a.Place() == b.Place() }

// FindForeign looks for partitions that were made for no claim. Those that no layout has are somebody else's: they are
// remembered, and never touched.
func (e *Engine) FindForeign(ctx context.Context) {
	b := e.backend.Load()
	if b.hardware == nil {
		return
	}
	node := b.hardware.Node()
	for i := range node.GPUs {
		if err := e.scan(ctx, b, &node.GPUs[i]); err != nil {
			klog.FromContext(ctx).Error(err, "Could not look for partitions of others", "gpu", node.GPUs[i].PCI.DeviceName())
		}
	}
}

// scan looks for partitions of a GPU that no record names.
func (e *Engine) scan(ctx context.Context, b *backend, g *gpu.GPU) error {
	if len(g.MIG.Profiles) == 0 {
		return nil
	}
	held, err := e.lockFor(ctx, "", []string{g.PCI.DeviceName()})
	if err != nil {
		return err
	}
	defer held.Release()
	all, err := b.hardware.Partitions(ctx, g)
	if err != nil {
		return err
	}
	e.stand(ctx, g, all)
	return nil
}

// stand remembers the partitions of a GPU that were made for no claim; the caller holds its lock.
func (e *Engine) stand(ctx context.Context, g *gpu.GPU, all []gpu.Partition) {
	name := g.PCI.DeviceName()
	layout := e.layout(name)
	parts := slices.DeleteFunc(all, func(p gpu.Partition) bool { return e.hasPartition(name, p) })
	if e.standing.set(name, parts) {
		own := len(slices.DeleteFunc(slices.Clone(parts), func(p gpu.Partition) bool { return !layout.Has(p.Place()) }))
		klog.FromContext(ctx).Info("Partitions that were made for no claim", "gpu", name, "ofLayout", own, "ofOthers", len(parts)-own)
	}
}

// handsOut tells whether claims get the standing partitions of a GPU as they are, by policy.
func handsOut(offer *policy.Offer) bool {
	mode := offer.PartitionMode()
	return mode == policy.Layout || mode == policy.Existing
}

// ready returns the standing partition that a claim for a shape gets, or nil.
func (e *Engine) ready(s gpu.Shape, offer *policy.Offer) *gpu.Partition {
	if !handsOut(offer) {
		return nil
	}
	return e.standing.at(s)
}

// occupant returns the standing partition that keeps a device from being handed out, or nil.
func (e *Engine) occupant(node *policy.Node, d *records.Device) *gpu.Partition {
	other := e.standing.on(d)
	g := node.Find(d.GPU)
	if other == nil || d.Partition == nil || g == nil || !handsOut(node.Offer(g)) || !samePlace(*other, *d.Partition) || other.CI == nil {
		return other
	}
	return nil
}

// Existing is a partition that is there before a claim has it.
type Existing struct {
	Device, UUID string
}

// Existing lists those that can be handed out, in order of the devices.
func (e *Engine) Existing() []Existing {
	b := e.backend.Load()
	if b.hardware == nil {
		return nil
	}
	var all []Existing
	node := b.hardware.Node()
	for i := range node.GPUs {
		offer := node.Offer(&node.GPUs[i])
		if !handsOut(offer) {
			continue
		}
		for _, s := range offer.Shapes(&node.GPUs[i]) {
			if p := e.ready(s, offer); p != nil {
				all = append(all, Existing{s.Name(), p.UUID})
			}
		}
	}
	return all
}

// Standing are the places of a GPU's partitions that were made for no claim and are whole, in order of their GPU
// instances.
func (e *Engine) Standing(g *gpu.GPU) []gpu.Place {
	var places []gpu.Place
	for _, p := range e.standing.of(g.PCI.DeviceName()) {
		if p.CI != nil {
			places = append(places, p.Place())
		}
	}
	return places
}

// Occupied lists the devices, by name, that cannot be handed out though no claim holds them: a standing partition is in
// their place or has their engines, one that a claim gave back cannot be destroyed yet, or one of a layout is not made
// yet.
func (e *Engine) Occupied() []string {
	b := e.backend.Load()
	if b.hardware == nil {
		return nil
	}
	var names []string
	node := b.hardware.Node()
	for i := range node.GPUs {
		others := append(shapesOf(&node.GPUs[i], e.standing.of(node.GPUs[i].PCI.DeviceName())), e.otherShapes(&node.GPUs[i])...)
		for _, s := range node.Shapes(&node.GPUs[i]) {
			if e.occupied(node, s, others) {
				names = append(names, s.Name())
			}
		}
	}
	return names
}

// occupied tells it of one shape; others are the standing partitions of its GPU and those of other driver names.
func (e *Engine) occupied(node *policy.Node, s gpu.Shape, others []gpu.Shape) bool {
	d := &records.Device{GPU: s.GPU.PCI.DeviceName()}
	if s.IsPartition() {
		d.Partition = &gpu.Partition{ProfileID: s.Profile.ID, Placement: s.Placement}
	}
	if s.IsShare() {
		d.Share = &records.Share{Kind: s.Share}
	}
	if e.index.releasing(d) || e.occupant(node, d) != nil || e.otherHolder(d) != nil {
		return true
	}
	if e.standing.on(d) != nil {
		return false // it is what is handed out
	}
	uncut := s.IsPartition() && node.Offer(s.GPU).PartitionMode() == policy.Layout && !e.hasPartition(d.GPU, *d.Partition)
	return uncut || !s.FitsBeside(others)
}
