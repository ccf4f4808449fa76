// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// apply makes the hardware, the specs and the record say what want does, and fills in what only the hardware knows.
// Whatever fails, nothing is left behind; should even that fail, the record stays and says that work is left.
// The caller holds the locks of all GPUs.
func (e *Engine) apply(ctx context.Context, b *backend, devices []planned, want *records.Record, adopt bool) error {
	if err := e.takeStanding(ctx, b, devices, want); err != nil {
		return err
	}
	if !adopt { // else its pods may run, whatever the mode
		if err := e.checkComputeModes(ctx, b, devices, want); err != nil {
			return err
		}
	}
	// A claim that takes over all that it has makes nothing, so nothing may be undone: its pods run in it.
	makes := len(want.InSpec()) > 0 && (!adopt || !allThere(ctx, b, devices))
	patience, cancel := context.WithTimeout(ctx, inUsePatience)
	defer cancel()
	// Modes before anything else: to change one may take long, and between the look for vacancy and the record that
	// claims a place, as little time as possible should pass.
	if err := setModes(patience, b, devices); err != nil {
		return err
	}
	if makes && !adopt {
		// What is found in a claim's place after a crash counts as its own: so nothing may be there before.
		if err := e.checkVacant(ctx, b, devices, want); err != nil {
			return err
		}
	}
	intent := makes && needsIntent(want)
	if intent {
		begun := want.Clone()
		begun.State = records.Preparing
		if err := e.write(begun); err != nil {
			return err
		}
	}
	err := e.change(ctx, patience, b, devices, want, adopt)
	if err == nil {
		err = e.finish(ctx, b, want, intent)
	}
	if err == nil || !makes {
		return err // nothing was made, and an earlier record stays as it is
	}
	// Not ctx: what was begun must be undone when the kubelet has given up waiting, too.
	undo := context.WithoutCancel(ctx)
	if errors.Is(err, gpu.ErrLeftBehind) {
		want.State = records.Preparing // what was made is found by its place
	}
	if undoErr := e.undo(undo, b, want); undoErr != nil {
		return errors.Join(err, undoErr)
	}
	return errors.Join(err, e.forget(want.Claim.UID))
}

// needsIntent tells whether a claim's hardware must be on record before it is changed. A plain share changes none, and
// what MPS servers serve without a record is taken from them at the next start (recoverMPS), where GPUs offer MPS; a
// server that is one claim's alone may be anywhere.
func needsIntent(r *records.Record) bool {
	return slices.ContainsFunc(r.InSpec(), func(d *records.Device) bool { return d.Partition != nil && !d.Partition.Existing }) ||
		slices.ContainsFunc(r.Shares(gpu.TimeSlice), func(d *records.Device) bool { return d.Share.Interval != "" }) ||
		slices.ContainsFunc(r.Shares(gpu.MPS), func(d *records.Device) bool { return d.Share.Exclusive })
}

// finish writes spec and record. After an intent the record comes last, as it says that all is there. Without one it
// comes first: a spec that nothing knows of would stay for ever, and one that is missing is written again by intact.
func (e *Engine) finish(ctx context.Context, b *backend, want *records.Record, intent bool) error {
	if !intent {
		if err := e.write(want); err != nil {
			return err
		}
	}
	if parts := want.WithEdits(); len(parts) > 0 {
		if err := b.cdi.WriteClaim(ctx, want.Claim.UID, parts); err != nil {
			return err
		}
	}
	if intent {
		return e.write(want)
	}
	return nil
}

// write makes a record durable and enters it into the index.
func (e *Engine) write(r *records.Record) error {
	if err := e.store.Write(r); err != nil {
		return e.explainWrite(err)
	}
	e.index.set(r)
	return nil
}

// change does to the hardware what the devices need. Clients of a GPU are waited for until patience ends.
func (e *Engine) change(ctx, patience context.Context, b *backend, devices []planned, want *records.Record, adopt bool) error {
	for i, d := range devices {
		if !d.shape.IsPartition() || want.Devices[i].Partition.Existing {
			continue
		}
		part, err := e.partition(patience, b, d, adopt)
		if err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
		want.Devices[i].Partition = &part
	}
	return e.startShares(ctx, b, want)
}

// partition makes the partition of a device. A device with admin access gets the partition that a claim has there.
func (e *Engine) partition(ctx context.Context, b *backend, d planned, adopt bool) (gpu.Partition, error) {
	if d.admin {
		if existing := e.index.partition(d.shape, e.owns); existing != nil {
			return *existing, nil
		}
		return gpu.Partition{}, fmt.Errorf("admin access to partition %s, which no claim holds: ask for the GPU instead", d.shape.Name())
	}
	part, err := createPatiently(ctx, b, d.shape)
	if !adopt || !errors.Is(err, gpu.ErrInsufficientResources) {
		return part, err
	}
	existing, listErr := b.hardware.PartitionAt(ctx, d.shape.GPU.PCI, part)
	if listErr != nil || existing == nil || existing.CI == nil {
		return part, errors.Join(err, listErr)
	}
	klog.FromContext(ctx).Info("Taking over the partition of a claim whose record was lost", "device", d.shape.Name(), "uuid", existing.UUID)
	if e.sessions != nil && !e.sessions.Unbroken(d.shape.GPU.PCI.DeviceName()) {
		existing.Existing = true // it may be someone else's, created since: the claim has it, and it is never destroyed
		return *existing, nil
	}
	e.standing.remove(d.shape.GPU.PCI.DeviceName(), *existing)
	return *existing, nil
}

// takeStanding gives devices the partitions that are there ahead of claims, where the policy hands them out.
func (e *Engine) takeStanding(ctx context.Context, b *backend, devices []planned, want *records.Record) error {
	for i, d := range devices {
		if !d.shape.IsPartition() || d.admin || !handsOut(d.offer) {
			continue
		}
		var found *gpu.Partition
		if e.ready(d.shape, d.offer) != nil { // as last seen
			var err error
			if found, err = b.hardware.PartitionAt(ctx, d.shape.GPU.PCI, *want.Devices[i].Partition); err != nil {
				return fmt.Errorf("request %q: %w", d.request, err)
			}
		}
		switch {
		case found != nil && found.CI != nil:
			found.Existing = true
			want.Devices[i].Partition = found
		case d.offer.PartitionMode() == policy.Existing:
			return fmt.Errorf("request %q: partition %s is gone, and the policy has Cleave make none on GPU %s: make it again, for instance with nvidia-smi mig -cgi, "+
				"or delete the pod so that it is scheduled again", d.request, d.shape.Name(), d.shape.GPU.UUID)
		}
	}
	return nil
}

// checkVacant fails if a partition lies just where one is to be made: somebody else made it since we last looked.
func (e *Engine) checkVacant(ctx context.Context, b *backend, devices []planned, want *records.Record) error {
	for i, d := range devices {
		if !d.shape.IsPartition() || d.admin || want.Devices[i].Partition.Existing {
			continue
		}
		found, err := b.hardware.PartitionAt(ctx, d.shape.GPU.PCI, gpu.Partition{ProfileID: d.shape.Profile.ID, Placement: d.shape.Placement})
		if err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
		if found != nil {
			return fmt.Errorf("request %q: a partition that Cleave did not make (GPU instance %d) is in the place of %s: %w",
				d.request, found.GI, d.shape.Name(), gpu.ErrInsufficientResources)
		}
	}
	return nil
}

// allThere tells whether the partitions of devices exist already.
func allThere(ctx context.Context, b *backend, devices []planned) bool {
	for _, d := range devices {
		if !d.shape.IsPartition() || d.admin {
			continue
		}
		found, err := b.hardware.PartitionAt(ctx, d.shape.GPU.PCI, gpu.Partition{ProfileID: d.shape.Profile.ID, Placement: d.shape.Placement})
		if err != nil || found == nil || found.CI == nil {
			return false
		}
	}
	return true
}

// undo destroys the partitions of a record, gives back its shares and removes its spec; the record itself stays. The
// caller holds the locks of its GPUs.
func (e *Engine) undo(ctx context.Context, b *backend, r *records.Record) error {
	var errs []error
	for _, d := range r.Partitions() {
		if d.Partition.Existing {
			continue
		}
		if err := e.destroy(ctx, b, r, d); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, e.stopShares(ctx, b, r), e.specs.RemoveClaim(r.Claim.UID))...)
}

// destroy unmakes one partition of a record. Of a record that is Preparing nobody knows which partitions were made
// before the plugin was killed: what lies exactly where one was to be made is it. That cannot be somebody else's, as
// places that others occupy are refused before.
func (e *Engine) destroy(ctx context.Context, b *backend, r *records.Record, d *records.Device) error {
	if !e.owns(d) {
		klog.FromContext(ctx).Info("Leaving what is in the place of a partition that was created in an earlier session of the driver", "claim", r.Claim, "device", d.Device)
		e.changed() // what is there counts as unmanaged once the record is gone
		return nil
	}
	g, err := locate(b, d)
	if err != nil || g == nil {
		return err // gone, and its partitions with it, or not to be read
	}
	part := *d.Partition
	if part.UUID == "" {
		if r.State == records.Prepared {
			return nil // never made
		}
		found, err := b.hardware.PartitionAt(ctx, g.PCI, part)
		if takenOut(err) || err == nil && found == nil {
			return nil
		}
		if err != nil {
			return err
		}
		part = *found
	}
	err = b.hardware.DestroyPartition(ctx, g.PCI, part)
	if takenOut(err) {
		return nil
	}
	if errors.Is(err, gpu.ErrInUse) {
		return &InUseError{d.Device, fmt.Errorf("partition %s of claim %s cannot be destroyed: %w%s", d.Device, r.Claim, err, heldBy(ctx, b, g))}
	}
	return err
}

// takenOut reports whether an error says that a GPU is no longer in the node, and its partitions and processes with it. One
// that is lost or does not answer is not taken out.
func takenOut(err error) bool {
	return errors.Is(err, gpu.ErrAbsent) || errors.Is(err, gpu.ErrReplaced)
}

// markReleasing records that a claim holds nothing any more while its partitions or servers still exist.
func (e *Engine) markReleasing(r *records.Record) error {
	if err := e.specs.RemoveClaim(r.Claim.UID); err != nil {
		return err
	}
	if r.State == records.Releasing {
		return nil
	}
	releasing := r.Clone()
	if r.State == records.Prepared {
		releasing.State = records.Releasing
	}
	if err := e.write(releasing); err != nil {
		return err
	}
	e.changed()
	return nil
}

// intact tells whether a prepared claim's partitions are still there, and puts back a server or spec that is missing. An
// error says nothing about the partitions.
func (e *Engine) intact(ctx context.Context, b *backend, r *records.Record) (bool, error) {
	if len(e.outlived(r)) > 0 {
		return false, nil
	}
	for _, d := range r.Partitions() {
		g, err := locate(b, d)
		if err != nil || g == nil {
			return false, err
		}
		found, err := b.hardware.PartitionAt(ctx, g.PCI, *d.Partition)
		if err != nil {
			return false, fmt.Errorf("look for partition %s of claim %s: %w", d.Device, r.Claim, err)
		}
		if found == nil || found.UUID != d.Partition.UUID {
			klog.FromContext(ctx).Info("A claim's partition is gone", "claim", r.Claim, "device", d.Device)
			return false, nil
		}
	}
	for _, d := range r.Shares(gpu.MPS) {
		g, err := locate(b, d)
		if err != nil || g == nil || e.sharing == nil {
			return false, err
		}
		if _, _, err := e.sharing.StartMPS(ctx, r.Claim.UID, g, b.hardware.Node().Offer(g), d.Share.Limits()); err != nil {
			return false, err
		}
	}
	if parts := r.WithEdits(); len(parts) > 0 && !b.cdi.HasClaim(r.Claim.UID) {
		return true, b.cdi.WriteClaim(ctx, r.Claim.UID, parts)
	}
	return true, nil
}
