package claims

import (
	"context"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// foreignPartitions are the partitions that Cleave did not make, by the device name of their GPU, as last seen.
type foreignPartitions struct {
	mu    sync.Mutex
	byGPU map[string][]gpu.Partition
}

// on returns a foreign partition where a device is to be, or nil.
func (f *foreignPartitions) on(d *records.Device) *gpu.Partition {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.byGPU[d.GPU] {
		if d.Partition == nil || d.Partition.Placement.Overlaps(p.Placement) {
			return &p
		}
	}
	return nil
}

// at returns the foreign partition that is just what a shape would be, or nil.
func (f *foreignPartitions) at(s gpu.Shape) *gpu.Partition {
	if !s.IsPartition() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.byGPU[s.GPU.PCI.DeviceName()] {
		if p.ProfileID == s.Profile.ID && p.Placement == s.Placement && p.CI != nil {
			return &p
		}
	}
	return nil
}

// shapes are the foreign partitions of a GPU; one of a profile that the GPU does not name is left out.
func (f *foreignPartitions) shapes(g *gpu.GPU) []gpu.Shape {
	f.mu.Lock()
	defer f.mu.Unlock()
	var shapes []gpu.Shape
	for _, p := range f.byGPU[g.PCI.DeviceName()] {
		for i := range g.MIG.Profiles {
			if g.MIG.Profiles[i].ID == p.ProfileID {
				shapes = append(shapes, gpu.Shape{GPU: g, Profile: &g.MIG.Profiles[i], Placement: p.Placement})
			}
		}
	}
	return shapes
}

func (f *foreignPartitions) set(gpuDevice string, parts []gpu.Partition) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byGPU == nil {
		f.byGPU = map[string][]gpu.Partition{}
	}
	changed = !slices.EqualFunc(f.byGPU[gpuDevice], parts, samePlace)
	f.byGPU[gpuDevice] = parts
	return changed
}

func (f *foreignPartitions) remove(gpuDevice string, part gpu.Partition) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byGPU[gpuDevice] = slices.DeleteFunc(slices.Clone(f.byGPU[gpuDevice]), func(p gpu.Partition) bool { return samePlace(p, part) })
}

func samePlace(a, b gpu.Partition) bool {
	return a.ProfileID == b.ProfileID && a.Placement == b.Placement
}

// Recover brings hardware and specs in line with the records: what a killed plugin left half made is removed, what a
// claim gave back while the driver was away is destroyed, missing specs are written again, and partitions of others are
// looked for. It needs the hardware, and can be repeated at any time.
func (e *Engine) Recover(ctx context.Context) {
	b := e.backend.Load()
	if b.hardware == nil {
		return
	}
	logger := klog.FromContext(ctx)
	for _, r := range e.index.claims() {
		if ctx.Err() != nil {
			return
		}
		if len(r.InSpec()) == 0 {
			continue
		}
		if err := e.recoverClaim(ctx, b, r); err != nil {
			logger.Error(err, "Could not recover a claim; it is tried again at the next reconcile", "claim", r.Claim)
		}
	}
	started := !e.recovered.Swap(true)
	node := b.hardware.Node()
	for i := range node.GPUs {
		if err := e.recoverShares(ctx, &node.GPUs[i], started); err != nil {
			logger.Error(err, "Could not recover the sharing of a GPU; it is tried again at the next reconcile", "gpu", node.GPUs[i].PCI.DeviceName())
		}
	}
	e.FindForeign(ctx)
}

// Unfinished tells whether Recover has something to remove: claims that were cut short, or that gave back what could not
// be taken away yet.
func (e *Engine) Unfinished() bool {
	return slices.ContainsFunc(e.index.claims(), func(r *records.Record) bool { return r.State != records.Prepared })
}

// FindForeign looks for partitions that no record names. They are somebody else's: they are remembered, and never
// touched.
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

// recoverClaim does what a record's state asks for.
func (e *Engine) recoverClaim(ctx context.Context, b *backend, r *records.Record) error {
	held, err := e.lockFor(ctx, r.Claim.UID, r.GPUs())
	if err != nil {
		return err
	}
	defer held.Release()
	now := e.index.get(r.Claim.UID)
	if now == nil {
		return nil
	}
	if now.State != records.Prepared {
		klog.FromContext(ctx).Info("Removing what is left of a claim", "claim", now.Claim, "state", now.State)
		if err := e.undo(ctx, b, now); err != nil {
			return err
		}
		return e.forget(now.Claim.UID)
	}
	_, err = e.intact(ctx, b, now)
	return err
}

// scan looks for partitions of a GPU that no record names.
func (e *Engine) scan(ctx context.Context, b *backend, g *gpu.GPU) error {
	if len(g.MIG.Profiles) == 0 {
		return nil
	}
	name := g.PCI.DeviceName()
	held, err := e.lockFor(ctx, "", []string{name})
	if err != nil {
		return err
	}
	defer held.Release()
	all, err := b.hardware.Partitions(ctx, g)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(all, func(p gpu.Partition) bool { return e.index.hasPartition(name, p) })
	if e.foreign.set(name, others) {
		klog.FromContext(ctx).Info("Partitions that Cleave did not make", "gpu", name, "partitions", len(others))
	}
	return nil
}

// occupant returns the partition of somebody else that keeps a device from being handed out, or nil.
func (e *Engine) occupant(d *records.Device) *gpu.Partition {
	other := e.foreign.on(d)
	if other == nil || d.Partition == nil || !e.offerExisting || !samePlace(*other, *d.Partition) || other.CI == nil {
		return other
	}
	return nil
}

// Existing is a partition of somebody else that is handed out as it is.
type Existing struct {
	Device, UUID string
}

// Existing lists them, in order of the devices; none unless OfferExisting was called.
func (e *Engine) Existing() []Existing {
	b := e.backend.Load()
	if b.hardware == nil || !e.offerExisting {
		return nil
	}
	var all []Existing
	node := b.hardware.Node()
	for i := range node.GPUs {
		for _, s := range node.GPUs[i].Shapes() {
			if p := e.foreign.at(s); p != nil {
				all = append(all, Existing{s.Name(), p.UUID})
			}
		}
	}
	return all
}

// Occupied lists the devices, by name, that cannot be handed out though no claim holds them: somebody else's partition
// is in their place or has their engines, or one that a claim gave back cannot be destroyed yet.
func (e *Engine) Occupied() []string {
	b := e.backend.Load()
	if b.hardware == nil {
		return nil
	}
	var names []string
	node := b.hardware.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		others := e.foreign.shapes(g)
		for _, s := range g.Shapes() {
			d := &records.Device{GPU: g.PCI.DeviceName()}
			if s.IsPartition() {
				d.Partition = &gpu.Partition{ProfileID: s.Profile.ID, Placement: s.Placement}
			}
			if s.IsShare() {
				d.Share = &records.Share{Kind: s.Share}
			}
			offered := e.foreign.on(d) != nil && e.occupant(d) == nil
			if !offered && !s.FitsBeside(others) || e.occupant(d) != nil || e.index.releasing(d) {
				names = append(names, s.Name())
			}
		}
	}
	return names
}
