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

// Partitions creates and destroys partitions: for claims, and ahead of them as layouts of the policy. It knows those that are
// neither, which are never touched.
type Partitions struct {
	ledger    *Ledger
	gate      *gate
	unclaimed unclaimed
	refused   refused
}

// place finds out what lies just where the partition of a device is to be, and gives the device what it gets as it is: a
// partition that other claims share, or one that the policy has claims get. Nothing else may be there: what is found in a
// claim's place after a crash counts as its own. A claim whose record was lost takes over
// what lies there; lost is the driver session that its spec notes of a device, nil for other claims.
func (p *Partitions) place(ctx context.Context, b *backend, d *device, others gpuRecords,
	lost func(device string) (session string)) error {
	if !d.shape.IsPartition() || d.admin {
		return nil
	}
	offered := occupantOf(p.unclaimed.of(d.gpu), d.offer, d.extent()).offered // as last seen
	found, err := b.hardware.PartitionAt(ctx, d.shape.GPU.PCI, d.wanted())
	if err != nil {
		return err
	}
	whole := found != nil && found.CI != nil
	shared := (*gpu.Partition)(nil)
	if d.shape.IsShare() {
		shared = others.partition(d.shape, p.ledger.sessions.owns)
	}
	switch {
	case shared != nil && whole && found.UUID == shared.UUID:
		d.partition = shared
	case shared != nil:
		return fmt.Errorf("partition %s is gone though claims share it: it was destroyed outside of Cleave; "+
			"delete their pods, and it is created again", d.name)
	case offered && whole:
		found.Existing = true
		d.partition = found
	case d.offer.PartitionMode() == policy.Existing:
		return fmt.Errorf("partition %s is gone, and the policy has Cleave create none on GPU %s: "+
			"create it again, for instance with nvidia-smi mig -cgi, or delete the pod so that it is scheduled again", d.name, d.shape.GPU.UUID)
	case lost != nil && whole:
		p.takeOver(ctx, d, found, lost(d.name))
	case found != nil && lost == nil:
		return fmt.Errorf("a partition that Cleave did not create (GPU instance %d) is in the place of %s: %w",
			found.GI, d.name, gpu.ErrInsufficientResources)
	}
	return nil
}

// takeOver gives a device the partition of a claim whose record was lost. It is the claim's own if nobody else can have created it since
// the claim did: in the GPU's first session of the driver, or in the one that the claim's spec notes.
func (p *Partitions) takeOver(ctx context.Context, d *device, found *gpu.Partition, noted string) {
	name := d.gpu
	klog.FromContext(ctx).Info("Taking over the partition of a claim whose record was lost", "device", d.name, "uuid", found.UUID)
	if session := p.ledger.sessions.of(name); p.ledger.sessions.unbroken(name) || session == noted {
		p.unclaimed.remove(name, *found)
	} else {
		found.Existing = true // it may be someone else's, created since: the claim has it, and it is never destroyed
	}
	d.partition = found
}

// create creates the partition of a device that has none yet. A device with admin access gets the partition that a claim has
// there. before are the devices of the same preparation that have theirs. Clients of the GPU are waited for until ctx ends.
func (p *Partitions) create(ctx context.Context, b *backend, d *device, before []device, others gpuRecords) error {
	if !d.shape.IsPartition() || d.partition != nil {
		return nil
	}
	if d.admin {
		if d.partition = others.partition(d.shape, p.ledger.sessions.owns); d.partition == nil {
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

// destroy destroys the partitions of a record that Cleave created and no other claim shares; the caller holds the locks of its
// GPUs.
func (p *Partitions) destroy(ctx context.Context, b *backend, r *records.Record) error {
	var errs []error
	for _, d := range r.Partitions() {
		if !d.Partition.Existing {
			errs = append(errs, p.destroyOne(ctx, b, r, d))
		}
	}
	return errors.Join(errs...)
}

// destroyOne destroys one partition of a record. Of a record that is Preparing nobody knows which partitions were created
// before the plugin was killed: what lies exactly where one was to be is it. That cannot be unmanaged, as places that others
// occupy are refused before.
func (p *Partitions) destroyOne(ctx context.Context, b *backend, r *records.Record, d *records.Device) error {
	if d.IsShared() {
		if p.ledger.index.on(d.GPU, r.Claim.UID).sharesPartition(d, p.ledger.sessions.owns) {
			return nil
		}
		corrupt := slices.DeleteFunc(p.ledger.corruptOn(d.GPU), func(uid types.UID) bool { return uid == r.Claim.UID })
		if len(corrupt) > 0 {
			return &othersError{fmt.Errorf("partition %s of claim %s is not destroyed yet: claims %v, whose records are corrupt, may share it",
				d.Device, r.Claim, corrupt)}
		}
	}
	if !p.ledger.sessions.owns(d) {
		klog.FromContext(ctx).Info("Leaving what is in the place of a partition that was created in an earlier session of the driver",
			"claim", r.Claim, "device", d.Device)
		p.ledger.changed() // what is there counts as unmanaged once the record is gone
		return nil
	}
	g, err := locate(b, d)
	if err != nil || g == nil {
		return err // gone, and its partitions with it, or not to be read
	}
	part := *d.Partition
	if part.UUID == "" {
		if r.State == records.Prepared {
			return nil // never created
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
		by, named := partitionUsedBy(ctx, b, g, &part)
		return &InUseError{d.Device, named, fmt.Errorf("partition %s of claim %s cannot be destroyed: %w%s", d.Device, r.Claim, err, by)}
	}
	return err
}
