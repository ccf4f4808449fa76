// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// LayoutProblem explains why a GPU is not partitioned according to its policy.
type LayoutProblem struct {
	// GPU is the name of the whole-GPU device.
	GPU string
	Err error
}

// KeepLayouts partitions GPUs according to the policy, except where allocations prevent it: it creates missing partitions and
// destroys those that Cleave created and the policy no longer contains. It takes long: a GPU that no longer offers what it does on the
// given node is left alone, and so are all that are left when ctx ends. It can be repeated at any time.
func (p *Partitions) KeepLayouts(ctx context.Context, node *policy.Node) []LayoutProblem {
	b := p.gate.backend.Load()
	if b.hardware == nil || p.ledger.layouts.store == nil {
		return nil
	}
	var problems []LayoutProblem
	for i := range node.GPUs {
		if ctx.Err() != nil {
			break
		}
		g := &node.GPUs[i]
		name, offer := g.PCI.DeviceName(), node.Offer(g)
		kept := offer.PartitionMode() == policy.Layout || p.ledger.layout(name) != nil || p.ledger.layouts.isUnread(name)
		if !kept || p.ledger.isChanging(name) {
			continue
		}
		if err := p.keepLayout(ctx, b, g, offer); err != nil {
			problems = append(problems, LayoutProblem{name, err})
		}
	}
	return problems
}

// keepLayout lays out a GPU as it was offered, if it still is.
func (p *Partitions) keepLayout(ctx context.Context, b *backend, g *gpu.GPU, offer *policy.Offer) error {
	name := g.PCI.DeviceName()
	held, err := p.ledger.lockFor(ctx, "", []string{name})
	if err != nil {
		return err
	}
	defer held.Release()
	now := b.hardware.Node()
	if g = now.Find(name); g == nil || !reflect.DeepEqual(now.Offer(g), offer) {
		return nil // the policy has changed: partitions of the one before may be in the way of claims by now
	}
	return p.layOut(ctx, b, g, offer)
}

// layOut implements keepLayout; the caller holds the GPU's lock.
func (p *Partitions) layOut(ctx context.Context, b *backend, g *gpu.GPU, offer *policy.Offer) error {
	name := g.PCI.DeviceName()
	if p.ledger.layouts.isUnread(name) { // otherwise what Cleave created would no longer be known
		if p.ledger.layouts.reload(ctx, p.ledger.bootID, []string{name}); p.ledger.layouts.isUnread(name) {
			return fmt.Errorf("the layout of %s cannot be read: check the node's disk", name)
		}
	}
	all, err := b.hardware.Partitions(ctx, g)
	if err != nil {
		return err
	}
	if err := renewLayout(p.ledger, g, all); err != nil {
		return err
	}
	have := p.ledger.layout(name)
	if have != nil && (have.UUID != g.UUID || offer.PartitionMode() == policy.Existing) {
		// The layout of a replaced GPU, or a policy that only uses existing partitions: the partitions are unmanaged from now on.
		return p.ledger.layouts.write(&records.Layout{GPU: name})
	}
	var wanted []gpu.Place
	if offer.PartitionMode() == policy.Layout {
		if g.MIG.NeedsReset && !g.MIG.Enabled && offer.WantsMIG != nil {
			return nil // until its mode is changed
		}
		if g.MIG.NeedsReset && !g.MIG.Enabled {
			return fmt.Errorf("GPU %s is out of MIG mode, which only a reset changes: %s", g.UUID, gpu.SwitchMIG(g, g.PCI.String(), true))
		}
		wanted = offer.Partitions.Places
	}
	left, destroyErr := p.destroyExtra(ctx, b, g, have, wanted, all)
	created, createErr := p.createMissing(ctx, b, g, have, wanted, left)
	p.note(ctx, g, slices.Concat(left, created))
	return errors.Join(destroyErr, createErr)
}

// clearLayout destroys the partitions of a GPU that Cleave created for a layout, before the GPU is reset; the caller holds the GPU's
// lock. The places that the layout offers stay on record.
func (p *Partitions) clearLayout(ctx context.Context, b *backend, g *gpu.GPU) error {
	have := p.ledger.layout(g.PCI.DeviceName())
	all, err := b.hardware.Partitions(ctx, g)
	if err != nil {
		return err
	}
	left, err := p.destroyExtra(ctx, b, g, have, nil, all)
	p.note(ctx, g, left)
	own := slices.DeleteFunc(slices.Clone(left), func(part gpu.Partition) bool { return !have.Has(part.Place()) })
	return errors.Join(err, p.writeLayout(g, placesOf(own), have.Offered))
}

// destroyExtra destroys the partitions of a GPU that Cleave created and the policy no longer contains, and those left incomplete by a
// kill, unless they are allocated. It returns the remaining partitions.
func (p *Partitions) destroyExtra(ctx context.Context, b *backend, g *gpu.GPU, have *records.Layout, wanted []gpu.Place,
	all []gpu.Partition) ([]gpu.Partition, error) {
	name, taken := g.PCI.DeviceName(), takenPlaces{p.ledger}
	var left []gpu.Partition
	var errs []error
	for _, part := range all {
		keep := slices.Contains(wanted, part.Place()) && part.CI != nil
		if keep || !have.Has(part.Place()) || taken.allocatedAt(name, part.Place()) {
			left = append(left, part)
			continue
		}
		klog.FromContext(ctx).V(2).Info("Destroying a partition that the policy no longer has", "gpu", name, "profile",
			g.MIG.ProfileName(part.ProfileID), "start", part.Placement.Start)
		if err := b.hardware.DestroyPartition(ctx, g.PCI, part); err != nil {
			if errors.Is(err, gpu.ErrInUse) {
				by, _ := partitionUsedBy(ctx, b, g, &part)
				err = fmt.Errorf("%w%s", err, by)
			}
			left, errs = append(left, part), append(errs, err)
		}
	}
	return left, errors.Join(errs...)
}

// createMissing creates the missing partitions of a layout. They are recorded before they are created.
func (p *Partitions) createMissing(ctx context.Context, b *backend, g *gpu.GPU, have *records.Layout, wanted []gpu.Place,
	left []gpu.Partition) (created []gpu.Partition, err error) {
	own := slices.DeleteFunc(slices.Clone(left), func(part gpu.Partition) bool { return !have.Has(part.Place()) })
	missing, problem := p.missing(g, wanted, left)
	places := placesOf(own)
	for _, s := range missing {
		places = append(places, s.Place())
	}
	if err := p.writeLayout(g, places, wanted); err != nil {
		return nil, err
	}
	if len(missing) == 0 {
		return nil, problem
	}
	errs := []error{problem}
	if err := b.hardware.SetMIG(ctx, g.PCI, true); err != nil {
		errs = append(errs, fmt.Errorf("%w%s", err, usedBy(ctx, b, g)))
		missing = nil
	}
	for _, s := range missing {
		klog.FromContext(ctx).V(2).Info("Creating a partition of the layout", "device", s.Name(), "profile", s.Profile.Name)
		part, err := b.hardware.CreatePartition(ctx, s)
		if err == nil {
			created = append(created, part)
			continue
		}
		errs = append(errs, err)
		if errors.Is(err, gpu.ErrLeftBehind) {
			own = append(own, part) // recorded, so that the next attempt finds it
		}
	}
	errs = append(errs, p.writeLayout(g, placesOf(append(own, created...)), wanted))
	return created, errors.Join(errs...)
}

// missing returns the partitions of a layout that do not exist and can be created now. It skips those in whose place, or with whose
// engines, others are allocated; an unmanaged partition in the way is an error.
func (p *Partitions) missing(g *gpu.GPU, wanted []gpu.Place, left []gpu.Partition) ([]gpu.Shape, error) {
	name := g.PCI.DeviceName()
	layout, claimed := p.ledger.layout(name), p.ledger.partitionsOf(name)
	var all []gpu.Partition
	for _, at := range wanted {
		if part := (gpu.Partition{ProfileID: at.ProfileID, Placement: at.Placement}); !containsPlace(left, part) {
			all = append(all, part)
		}
	}
	var missing []gpu.Shape
	var errs []error
	taken := takenPlaces{p.ledger}
	there := shapesOf(g, slices.Concat(left, taken.promised(name, slices.Concat(left, all))))
	for _, s := range shapesOf(g, all) {
		if taken.allocatedInTheWay(name, s.Place()) {
			continue
		}
		for _, part := range left {
			if layout.Has(part.Place()) || containsPlace(claimed, part) || s.FitsAlongside(shapesOf(g, []gpu.Partition{part})) {
				continue
			}
			why := "is in its place"
			if !s.Placement.Overlaps(part.Placement) {
				why = "has engines that it needs"
			}
			errs = append(errs, fmt.Errorf("%s of the layout cannot be created: %s %s", s.Name(), p.describe(name, &part), why))
		}
		if s.FitsAlongside(append(slices.Clone(there), missing...)) {
			missing = append(missing, s)
		}
	}
	return missing, errors.Join(errs...)
}

// describe describes an unclaimed partition for a message, with the remedy.
func (p *Partitions) describe(gpuDevice string, part *gpu.Partition) string {
	what := fmt.Sprintf("GPU instance %d at %d:%d", part.GI, part.Placement.Start, part.Placement.Size)
	if p.ledger.layout(gpuDevice).Has(part.Place()) {
		return fmt.Sprintf("a partition of the node's layout (%s): it is destroyed once the policy no longer has it and nothing runs in it", what)
	}
	return fmt.Sprintf("a partition that Cleave did not create (%s): destroy it, for instance with nvidia-smi mig -dgi", what)
}

// writeLayout records the places of a GPU where Cleave created partitions, and the places that its layout offers.
func (p *Partitions) writeLayout(g *gpu.GPU, places, offered []gpu.Place) error {
	name := g.PCI.DeviceName()
	err := p.ledger.layouts.write(&records.Layout{
		Format: records.LayoutFormat, BootID: p.ledger.bootID, Session: p.ledger.sessions.of(name), GPU: name, UUID: g.UUID,
		Places: sortedPlaces(places), Offered: offered,
	})
	return explainWrite(p.ledger.store.Dir(), err)
}

func placesOf(parts []gpu.Partition) []gpu.Place {
	places := make([]gpu.Place, 0, len(parts))
	for _, p := range parts {
		places = append(places, p.Place())
	}
	return places
}
