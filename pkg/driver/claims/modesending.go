// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// ending is what Cleave created on a GPU and the GPU's reset ends: partitions of a layout, and those of claims that have ended. They are
// destroyed before, unless the driver does that only after the reset, as on a GPU that has failed. A change of the MIG mode is made without
// them.
type ending struct {
	partitions *Partitions
	// reset is set for a reset on request, and not for a change of the mode.
	reset bool
	// claims are the records of claims of which nothing is left that the reset, or the change, waits for.
	claims []*records.Record
}

// ending returns what a reset of a GPU, or a change of its mode, ends; the caller holds its lock.
func (m *Modes) ending(device string, reset bool) *ending {
	ends := (*records.Record).EndsBeforeChange
	if reset {
		ends = (*records.Record).EndsWithReset
	}
	all := Under(m.ledger.id.Driver, m.ledger.index.on(device, "").all)
	return &ending{m.partitions, reset, slices.DeleteFunc(all, func(r *records.Record) bool { return !ends(r, device) })}
}

// has reports whether a record is of a claim that has ended.
func (e *ending) has(r *records.Record) bool {
	return slices.ContainsFunc(e.claims, func(o *records.Record) bool { return o.Claim.UID == r.Claim.UID })
}

// hasPartition reports whether a partition ends with the reset.
func (e *ending) hasPartition(device string, part gpu.Partition) bool {
	return e.reset && (e.partitions.ledger.layout(device).Has(part.Place()) || slices.ContainsFunc(e.claims, func(r *records.Record) bool {
		return slices.ContainsFunc(r.Partitions(), func(d *records.Device) bool {
			return d.GPU == device && e.partitions.ledger.sessions.owns(d) && samePlace(*d.Partition, part)
		})
	}))
}

// awaits reports whether an error says that the driver does something only after the reset.
func (e *ending) awaits(err error) bool { return e.reset && awaitsReset(err) }

// check destroys the partitions, and fails if one is in use, or if the GPU has others, which Cleave did not create.
func (e *ending) check(ctx context.Context, b *backend, g *gpu.GPU) error {
	if err := e.clear(ctx, b, g); err != nil {
		return err
	}
	device := g.PCI.DeviceName()
	parts, err := b.hardware.Partitions(ctx, g)
	if err != nil {
		return err
	}
	parts = slices.DeleteFunc(parts, func(part gpu.Partition) bool { return e.hasPartition(device, part) })
	if len(parts) > 0 {
		return fmt.Errorf("%w: %s", gpu.ErrPartitioned, e.partitions.describe(device, &parts[0]))
	}
	return nil
}

// clear destroys the partitions as far as the driver does. It fails if one is in use.
func (e *ending) clear(ctx context.Context, b *backend, g *gpu.GPU) error {
	for _, r := range e.claims {
		gone, err := e.partitions.destroy(ctx, b, r, elsewhere(r, g.PCI.DeviceName()))
		if noted := writeGone(e.partitions.ledger, r, gone); noted != nil {
			return errors.Join(err, noted)
		}
		if err != nil && !e.awaits(err) {
			return err
		}
	}
	switch device := g.PCI.DeviceName(); {
	case e.partitions.ledger.layout(device) == nil:
		return nil
	case !e.reset:
		return e.partitions.layOut(ctx, b, g, b.hardware.Node().Offer(g))
	}
	if err := e.partitions.clearLayout(ctx, b, g); err != nil && !e.awaits(err) {
		return err
	}
	return nil
}

// elsewhere are the partitions of a record on other GPUs, which are not locked. The record itself may be written: whoever else does that
// locks all of its GPUs, this one too.
func elsewhere(r *records.Record, device string) []*records.Device {
	return slices.DeleteFunc(r.Partitions(), func(d *records.Device) bool { return d.GPU == device })
}

// awaitsReset reports whether an error says that the driver does nothing with a GPU before its reset, and not that something uses it. A GPU
// that has failed and was closed may not open again.
func awaitsReset(err error) bool {
	return (errors.Is(err, gpu.ErrResetRequired) || errors.Is(err, gpu.ErrUnreadable)) && !errors.Is(err, gpu.ErrInUse)
}

// note notes that a GPU was reset: what is found in the places of the partitions from now on is someone else's. The records of the claims
// are removed by Recover.
func (e *ending) note(ctx context.Context, g *gpu.GPU) {
	p, device := e.partitions, g.PCI.DeviceName()
	p.note(ctx, g, nil)
	var errs []error
	if have := p.ledger.layout(device); have != nil {
		errs = append(errs, p.writeLayout(g, nil, have.Offered))
	}
	for _, r := range e.claims {
		ended := slices.DeleteFunc(r.Partitions(), func(d *records.Device) bool { return d.GPU != device })
		errs = append(errs, writeGone(p.ledger, r, ended))
	}
	if err := errors.Join(errs...); err != nil {
		klog.FromContext(ctx).Error(err, "Could not record that the partitions of a GPU ended with its reset", "gpu", device)
	}
}
