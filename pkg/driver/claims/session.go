// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// sessions are those of the driver; without DriverSessions they are not distinguished.
type sessions struct{ DriverSessions }

// of is the present session of a GPU; empty where sessions are not distinguished.
func (s sessions) of(gpuDevice string) string {
	if s.DriverSessions == nil {
		return ""
	}
	return s.Of(gpuDevice)
}

// current reports whether a session on record is the present one.
func (s sessions) current(gpuDevice, session string) bool {
	return s.DriverSessions == nil || session == s.of(gpuDevice)
}

// unbroken reports whether nobody else can have created a partition of a GPU in place of one of ours.
func (s sessions) unbroken(gpuDevice string) bool {
	return s.DriverSessions == nil || s.Unbroken(gpuDevice)
}

// owns reports whether the partition of a device on record is Cleave's own: it was not there before the claim, and no one
// else can have created it since.
func (s sessions) owns(d *records.Device) bool {
	return d.Partition != nil && !d.Partition.Existing && s.current(d.GPU, d.Session)
}

// outlived lists the partitions of a record that were created in an earlier session of the driver.
func (s sessions) outlived(r *records.Record) []*records.Device {
	var found []*records.Device
	for _, d := range r.Partitions() {
		if !d.Partition.Existing && !s.current(d.GPU, d.Session) {
			found = append(found, d)
		}
	}
	return found
}

// proves reports whether the partition of an earlier session is proven to be the same still.
func (s sessions) proves(b *backend, d *records.Device) bool {
	if d.Witness == "" || s.current(d.GPU, d.Session) {
		return false
	}
	g, err := locate(b, d)
	return err == nil && g != nil && s.Witness(g.Minor, d.Partition.GI) == d.Witness
}

// there reports whether all partitions of a prepared claim are still there. An error says nothing about them.
func (s sessions) there(ctx context.Context, b *backend, r *records.Record) (bool, error) {
	if len(s.outlived(r)) > 0 {
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
	return true, nil
}

// check fails if something lies where a claim had a partition in an earlier session of the driver: it may be the
// claim's, and it may be someone else's. Where nothing does, the claim can have a new one.
func (s sessions) check(ctx context.Context, b *backend, r *records.Record) error {
	for _, d := range s.outlived(r) {
		g, err := locate(b, d)
		if err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
		if g == nil {
			continue
		}
		found, err := b.hardware.PartitionAt(ctx, g.PCI, *d.Partition)
		if err != nil {
			return fmt.Errorf("request %q: %w", d.Request, err)
		}
		if found != nil {
			return fmt.Errorf("request %q: the NVIDIA driver was released or reloaded since partition %s was created, "+
				"and GPU instance %d, which is there now, need not be it: delete the pod, and destroy the GPU instance, for instance "+
				"with nvidia-smi mig -dgi", d.Request, d.Device, found.GI)
		}
	}
	return nil
}

// renew notes the present session in a record, for partitions that are proven to be the same as before the driver was released. The
// caller holds the locks of its GPUs.
func (l *Ledger) renew(ctx context.Context, b *backend, r *records.Record) (*records.Record, error) {
	if l.sessions.DriverSessions == nil {
		return r, nil
	}
	renewed := r.Clone()
	changed := false
	for _, d := range renewed.Partitions() {
		if d.Partition.Existing || !l.sessions.proves(b, d) {
			continue
		}
		klog.FromContext(ctx).V(2).Info("A partition is of the present session of the driver", "claim", r.Claim, "device", d.Device,
			"before", d.Session)
		d.Session, d.Witness, changed = l.sessions.of(d.GPU), "", true
	}
	if !changed {
		return r, nil
	}
	return renewed, l.write(renewed)
}

// EndSession ends the driver's present session: what was created in it no longer counts as Cleave's own, except partitions that
// prove to be the same later. Call it after SetWaiting and Quiesce, and before the driver is released; hw is the hardware as it
// was. An error means that the driver must not be released.
func (l *Ledger) EndSession(ctx context.Context, hw Hardware) error {
	if l.sessions.DriverSessions == nil {
		return nil
	}
	if err := l.closeRecords(ctx, hw); err != nil {
		return err
	}
	return l.sessions.End()
}

// closeRecords is closeRecord for all claims.
func (l *Ledger) closeRecords(ctx context.Context, hw Hardware) error {
	uids, err := l.store.Names()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		r, err := l.store.Read(uid)
		if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) || err == nil && r == nil {
			continue
		}
		if err != nil {
			return err
		}
		if err := l.closeRecord(ctx, hw, r); err != nil {
			return fmt.Errorf("note the driver's session for claim %s: %w", r.Claim, err)
		}
	}
	return nil
}

// closeRecord notes what proves later that partitions of a claim are the same.
func (l *Ledger) closeRecord(ctx context.Context, hw Hardware, r *records.Record) error {
	if len(r.Partitions()) == 0 || r.BootID != l.bootID {
		return nil
	}
	return l.locked(ctx, r, func(now *records.Record) error {
		closed := now.Clone()
		for _, d := range closed.Partitions() {
			if !l.sessions.owns(d) {
				continue
			}
			d.Session = l.sessions.of(d.GPU)
			if g := hw.Node().Find(d.GPU); g != nil && d.Partition.UUID != "" {
				d.Witness = l.sessions.Witness(g.Minor, d.Partition.GI)
			}
		}
		return l.write(closed)
	})
}
