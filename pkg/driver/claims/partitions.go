// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Partitions creates and destroys partitions: for claims, and ahead of them as layouts of the policy. It also tracks unmanaged
// partitions, which it never touches.
type Partitions struct {
	ledger    *Ledger
	gate      *gate
	unclaimed unclaimed
	refused   refused
}

// place checks the exact place of a device's partition, and assigns an existing partition to the device: one that other claims
// share, or one that the policy offers. No other partition may be there: one found in a
// claim's place after a crash counts as the claim's. A claim whose record was lost takes over
// the partition found there; lost returns the driver session that its spec records for a device, and is nil for other claims.
func (p *Partitions) place(ctx context.Context, b *backend, d *device, others gpuRecords,
	lost func(device string) (session string)) error {
	if !d.shape.IsPartition() || d.admin {
		return nil
	}
	found, err := b.hardware.PartitionAt(ctx, d.shape.GPU.PCI, d.wanted())
	if err != nil {
		return err
	}
	whole := found != nil && found.CI != nil
	// By what is there now: a plugin that starts has not looked for unclaimed partitions yet.
	offered := whole && takenPlaces{p.ledger}.occupantOf([]gpu.Partition{*found}, d.offer, d.extent()).offered
	shared := (*gpu.Partition)(nil)
	if d.shape.IsShare() {
		shared = others.partition(d.shape, p.ledger.sessions.keeps(b))
	}
	switch {
	case shared != nil && whole && found.UUID == shared.UUID:
		d.partition = shared
	case shared != nil:
		return fmt.Errorf("partition %s is gone although claims share it: it was destroyed outside of Cleave; "+
			"delete their pods to have it created again", d.name)
	case offered:
		found.Existing = true
		d.partition = found
	case d.offer.PartitionMode() == policy.Existing:
		return fmt.Errorf("partition %s is gone, and by policy Cleave creates no partitions on GPU %s: "+
			"create it again, for instance with nvidia-smi mig -cgi, or delete the pod so that it is scheduled again", d.name, d.shape.GPU.UUID)
	case lost != nil && whole:
		p.takeOver(ctx, d, found, lost(d.name))
	case found != nil && lost == nil:
		return fmt.Errorf("a partition that Cleave did not create (GPU instance %d) is in the place of %s: %w",
			found.GI, d.name, gpu.ErrInsufficientResources)
	}
	return nil
}

// takeOver gives a device the partition of a claim whose record was lost. The claim owns it if no one else can have created it since
// the claim did: in the GPU's first session of the driver, or in the session that the claim's spec records.
func (p *Partitions) takeOver(ctx context.Context, d *device, found *gpu.Partition, noted string) {
	name := d.gpu
	klog.FromContext(ctx).Info("Taking over the partition of a claim whose record was lost", "device", d.name, "uuid", found.UUID)
	if session := p.ledger.sessions.of(name); p.ledger.sessions.unbroken(name) || session == noted {
		p.unclaimed.remove(name, *found)
	} else {
		found.Existing = true // it may have been created since by someone else: the claim uses it, but it is never destroyed
	}
	d.partition = found
}

// create creates a device's partition unless it has one. A device with admin access gets the partition that a claim has
// there. before are the earlier devices of the same preparation. Clients of the GPU are waited for until ctx ends.
func (p *Partitions) create(ctx context.Context, b *backend, d *device, before []device, others gpuRecords) error {
	if !d.shape.IsPartition() || d.partition != nil {
		return nil
	}
	if d.admin {
		if d.partition = others.partition(d.shape, p.ledger.sessions.keeps(b)); d.partition == nil {
			return fmt.Errorf("admin access to partition %s, which is allocated to no claim: ask for the GPU instead", d.name)
		}
		return nil
	}
	part, err := createPatiently(ctx, b, d.shape)
	if err := p.refused.noteOutcome(ctx, b, d, before, err); err != nil {
		if errors.Is(err, errRefused) {
			p.ledger.changed()
		}
		return err
	}
	d.partition = &part
	return nil
}

// destroy destroys the partitions of a record that Cleave created, no other claim shares and no share keeps; the caller holds the locks
// of its GPUs. It returns the devices whose partition no longer exists, also with an error: a partition found in such a place later is
// someone else's, and nothing but the record tells the two apart, see driversession.
func (p *Partitions) destroy(ctx context.Context, b *backend, r *records.Record, kept []*records.Device) (
	gone []*records.Device, err error) {
	var errs []error
	for _, d := range r.Partitions() {
		if d.Partition.Existing || slices.Contains(kept, d) {
			continue
		}
		isGone, err := p.destroyOne(ctx, b, r, d)
		if isGone {
			gone = append(gone, d)
		}
		errs = append(errs, err)
	}
	return gone, errors.Join(errs...)
}

// destroyOne destroys one partition of a record, and reports whether it is known not to exist any more. For a record that is
// Preparing it is unknown which partitions were created before the plugin was killed, so a partition exactly in a recorded place
// is destroyed. It cannot be unmanaged, as occupied places are refused earlier.
func (p *Partitions) destroyOne(ctx context.Context, b *backend, r *records.Record, d *records.Device) (gone bool, err error) {
	if d.IsShared() {
		if p.ledger.index.on(d.GPU, r.Claim.UID).sharesPartition(d, p.ledger.sessions.keeps(b)) {
			return false, nil
		}
		corrupt := slices.DeleteFunc(p.ledger.corruptOn(d.GPU), func(uid types.UID) bool { return uid == r.Claim.UID })
		if len(corrupt) > 0 {
			return false, &othersError{fmt.Errorf("partition %s of claim %s is not destroyed yet: claims %v, whose records are corrupt, "+
				"may share it", d.Device, r.Claim, corrupt)}
		}
	}
	if !p.ledger.sessions.owns(d) {
		klog.FromContext(ctx).Info("Leaving any partition in the place of one that was created in an earlier driver session",
			"claim", r.Claim, "device", d.Device)
		p.ledger.changed() // a partition there becomes unmanaged once the record is gone
		return false, nil
	}
	g, err := locate(b, d)
	if err != nil || g == nil {
		return false, err // the GPU is gone, with its partitions, or cannot be read
	}
	part := *d.Partition
	if part.UUID == "" {
		if r.State == records.Prepared {
			return true, nil // never created
		}
		found, err := b.hardware.PartitionAt(ctx, g.PCI, part)
		if takenOut(err) || err == nil && found == nil {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		part = *found
	}
	err = b.hardware.DestroyPartition(ctx, g.PCI, part)
	if err == nil || takenOut(err) {
		return true, nil
	}
	if errors.Is(err, gpu.ErrInUse) {
		by, named := partitionUsedBy(ctx, b, g, &part)
		return false, &InUseError{d.Device, named, fmt.Errorf("partition %s of claim %s cannot be destroyed: %w%s", d.Device, r.Claim, err, by)}
	}
	return false, err
}
