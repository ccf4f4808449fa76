// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// layouts are the partitions that Cleave has made ahead of claims, by the device name of their GPU. What they say of a GPU
// is true only while its lock is held.
type layouts struct {
	store *records.LayoutStore // nil where no layouts are kept
	mu    sync.Mutex
	byGPU map[string]*records.Layout
}

// LayoutProblem says why a GPU is not cut as its policy wants.
type LayoutProblem struct {
	// GPU is the name of its whole-GPU device.
	GPU string
	Err error
}

// KeepLayouts cuts GPUs as the policy wants them, as far as nothing is held that is in the way: it makes what is missing
// and unmakes what Cleave made and the policy has no more. It can be repeated at any time.
func (e *Engine) KeepLayouts(ctx context.Context) []LayoutProblem {
	b := e.backend.Load()
	if b.hardware == nil || e.layouts.store == nil {
		return nil
	}
	var problems []LayoutProblem
	node := b.hardware.Node()
	for i := range node.GPUs {
		name := node.GPUs[i].PCI.DeviceName()
		if node.Offer(&node.GPUs[i]).PartitionMode() != policy.Layout && e.layout(name) == nil {
			continue
		}
		if err := e.keepLayout(ctx, b, &node.GPUs[i], node.Offer(&node.GPUs[i])); err != nil {
			problems = append(problems, LayoutProblem{name, err})
		}
	}
	return problems
}

func (e *Engine) keepLayout(ctx context.Context, b *backend, g *gpu.GPU, offer *policy.Offer) error {
	name := g.PCI.DeviceName()
	held, err := e.lockFor(ctx, "", []string{name})
	if err != nil {
		return err
	}
	defer held.Release()
	have := e.layout(name)
	if have != nil && (have.UUID != g.UUID || offer.PartitionMode() == policy.Existing) {
		// Of another GPU that was here, or handed over as it is: from now on it is somebody else's.
		return e.layouts.write(&records.Layout{GPU: name})
	}
	all, err := b.hardware.Partitions(ctx, g)
	if err != nil {
		return err
	}
	var wanted []gpu.Place
	if offer.PartitionMode() == policy.Layout {
		if g.MIG.NeedsReset && !g.MIG.Enabled {
			return fmt.Errorf("GPU %s is out of MIG mode, which only a reset changes: %s", g.UUID, gpu.SwitchMIG(g.PCI.String(), true))
		}
		wanted = offer.Partitions.Places
	}
	left, unmakeErr := e.unmake(ctx, b, g, have, wanted, all)
	made, makeErr := e.cut(ctx, b, g, have, wanted, left)
	e.stand(ctx, g, slices.Concat(left, made))
	return errors.Join(unmakeErr, makeErr)
}

// unmake destroys what Cleave made of a GPU and the policy has no more, or what a kill left half made, unless a claim holds
// it, and returns the partitions that are left.
func (e *Engine) unmake(ctx context.Context, b *backend, g *gpu.GPU, have *records.Layout, wanted []gpu.Place, all []gpu.Partition) ([]gpu.Partition, error) {
	name := g.PCI.DeviceName()
	var left []gpu.Partition
	var errs []error
	for _, p := range all {
		keep := slices.Contains(wanted, p.Place()) && p.CI != nil
		if keep || !have.Has(p.Place()) || e.index.heldAt(name, p.Placement) || e.otherHeldAt(name, p.Placement) {
			left = append(left, p)
			continue
		}
		klog.FromContext(ctx).V(2).Info("Unmaking a partition that the policy has no more", "gpu", name, "profile", g.MIG.ProfileName(p.ProfileID), "start", p.Placement.Start)
		if err := b.hardware.DestroyPartition(ctx, g.PCI, p); err != nil {
			if errors.Is(err, gpu.ErrInUse) {
				err = fmt.Errorf("%w%s", err, heldBy(ctx, b, g))
			}
			left, errs = append(left, p), append(errs, err)
		}
	}
	return left, errors.Join(errs...)
}

// cut makes what is missing of a layout. What it is about to make is on record before.
func (e *Engine) cut(ctx context.Context, b *backend, g *gpu.GPU, have *records.Layout, wanted []gpu.Place, left []gpu.Partition) (made []gpu.Partition, err error) {
	own := slices.DeleteFunc(slices.Clone(left), func(p gpu.Partition) bool { return !have.Has(p.Place()) })
	missing, problem := e.missing(g, wanted, left)
	if err := e.layouts.write(e.layoutOf(g, append(placesOf(own), placesOfShapes(missing)...))); err != nil {
		return nil, e.explainWrite(err)
	}
	if len(missing) == 0 {
		return nil, problem
	}
	errs := []error{problem}
	if err := b.hardware.SetMIG(ctx, g.PCI, true); err != nil {
		errs = append(errs, fmt.Errorf("%w%s", err, heldBy(ctx, b, g)))
		missing = nil
	}
	for _, s := range missing {
		klog.FromContext(ctx).V(2).Info("Making a partition of the layout", "device", s.Name(), "profile", s.Profile.Name)
		part, err := b.hardware.CreatePartition(ctx, s)
		if err == nil {
			made = append(made, part)
			continue
		}
		errs = append(errs, err)
		if errors.Is(err, gpu.ErrLeftBehind) {
			own = append(own, part) // on record, so that the next attempt finds it
		}
	}
	if err := e.layouts.write(e.layoutOf(g, placesOf(append(own, made...)))); err != nil {
		errs = append(errs, e.explainWrite(err))
	}
	return made, errors.Join(errs...)
}

// missing are the partitions of a layout that are not there and can be made now. What claims hold is waited for; what
// somebody else made is a problem.
func (e *Engine) missing(g *gpu.GPU, wanted []gpu.Place, left []gpu.Partition) ([]gpu.Shape, error) {
	name := g.PCI.DeviceName()
	layout := e.layout(name)
	var all []gpu.Partition
	for _, place := range wanted {
		if !slices.ContainsFunc(left, func(p gpu.Partition) bool { return p.Place() == place }) {
			all = append(all, gpu.Partition{ProfileID: place.ProfileID, Placement: place.Placement})
		}
	}
	var missing []gpu.Shape
	var errs []error
	there := shapesOf(g, left)
	for _, s := range shapesOf(g, all) {
		if e.index.heldAt(name, s.Placement) || e.otherHeldAt(name, s.Placement) {
			continue
		}
		for _, p := range left {
			if s.Placement.Overlaps(p.Placement) && !layout.Has(p.Place()) && !e.hasPartition(name, p) {
				errs = append(errs, fmt.Errorf("%s of the layout cannot be made: %s is in its place", s.Name(), e.describe(name, &p)))
			}
		}
		if s.FitsBeside(append(slices.Clone(there), missing...)) {
			missing = append(missing, s)
		}
	}
	return missing, errors.Join(errs...)
}

// describe words a standing partition and what can be done about it.
func (e *Engine) describe(gpuDevice string, p *gpu.Partition) string {
	what := fmt.Sprintf("GPU instance %d at %d:%d", p.GI, p.Placement.Start, p.Placement.Size)
	if e.layout(gpuDevice).Has(p.Place()) {
		return fmt.Sprintf("a partition of the node's layout (%s): it goes by itself once the policy has it no more and nothing runs in it", what)
	}
	return fmt.Sprintf("a partition that Cleave did not make (%s): destroy it, for instance with nvidia-smi mig -dgi", what)
}

func (e *Engine) layoutOf(g *gpu.GPU, places []gpu.Place) *records.Layout {
	slices.SortFunc(places, func(a, b gpu.Place) int {
		return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.ProfileID, b.ProfileID))
	})
	name := g.PCI.DeviceName()
	return &records.Layout{Format: records.LayoutFormat, BootID: e.bootID, Session: e.sessionOf(name), GPU: name, UUID: g.UUID, Places: slices.Compact(places)}
}

func placesOf(parts []gpu.Partition) []gpu.Place {
	places := make([]gpu.Place, 0, len(parts))
	for _, p := range parts {
		places = append(places, p.Place())
	}
	return places
}

func placesOfShapes(shapes []gpu.Shape) []gpu.Place {
	places := make([]gpu.Place, 0, len(shapes))
	for _, s := range shapes {
		places = append(places, s.Place())
	}
	return places
}

// get returns the layout of a GPU, or nil; it must not be changed.
func (l *layouts) get(gpuDevice string) *records.Layout {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byGPU[gpuDevice]
}

// write makes a layout durable unless it is so already; one without places goes.
func (l *layouts) write(layout *records.Layout) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.byGPU[layout.GPU]
	if have != nil && have.UUID == layout.UUID && have.Session == layout.Session && slices.Equal(have.Places, layout.Places) || have == nil && len(layout.Places) == 0 {
		return nil
	}
	if len(layout.Places) == 0 {
		if err := l.store.Remove(layout.GPU); err != nil {
			return err
		}
		l.put(layout.GPU, nil)
		return nil
	}
	if err := l.store.Write(layout); err != nil {
		return err
	}
	l.put(layout.GPU, layout)
	return nil
}

// put enters a layout, or forgets it if it is nil; the caller holds mu.
func (l *layouts) put(gpuDevice string, layout *records.Layout) {
	if layout == nil {
		delete(l.byGPU, gpuDevice)
		return
	}
	if l.byGPU == nil {
		l.byGPU = map[string]*records.Layout{}
	}
	l.byGPU[gpuDevice] = layout
}

// load reads all layouts. What cannot be read is set aside: its partitions count as somebody else's, which are handed out
// where the policy has a place for them, and never destroyed.
func (l *layouts) load(ctx context.Context, bootID string, notify Notify) {
	if l.store == nil {
		return
	}
	devices, err := l.store.Names()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not read the layouts of GPUs")
	}
	l.reload(ctx, bootID, devices)
	for _, device := range devices {
		corrupt := (*records.CorruptLayoutError)(nil)
		if _, err := l.store.Read(device); !errors.As(err, &corrupt) {
			continue
		}
		aside, err := l.store.SetAside(device)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Leaving a corrupt layout where it is")
			continue
		}
		if notify != nil {
			notify("CorruptLayout", fmt.Sprintf("The layout of %s could not be read and was moved to %s: %v. The partitions that it named count as somebody else's: "+
				"Cleave will not destroy them.", device, aside, corrupt.Err))
		}
	}
}

// reload reads the layouts of some GPUs again: another process may have changed them. One of an earlier boot names nothing
// that is there.
func (l *layouts) reload(ctx context.Context, bootID string, devices []string) {
	if l.store == nil {
		return
	}
	for _, device := range devices {
		layout, err := l.store.Read(device)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not read the layout of a GPU")
			continue // what memory knows of it is all there is
		}
		if layout != nil && layout.BootID != bootID {
			layout = nil
		}
		l.mu.Lock()
		l.put(device, layout)
		l.mu.Unlock()
	}
}
