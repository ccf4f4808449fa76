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
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// sessions are the driver's sessions; without DriverSessions they are not distinguished.
type sessions struct{ DriverSessions }

// of returns the current session of a GPU; empty if sessions are not distinguished.
func (s sessions) of(gpuDevice string) string {
	if s.DriverSessions == nil {
		return ""
	}
	return s.Of(gpuDevice)
}

// current reports whether a recorded session is the current one.
func (s sessions) current(gpuDevice, session string) bool {
	return s.DriverSessions == nil || session == s.of(gpuDevice)
}

// unbroken reports whether no one else can have replaced a partition that Cleave created on a GPU.
func (s sessions) unbroken(gpuDevice string) bool {
	return s.DriverSessions == nil || s.Unbroken(gpuDevice)
}

// owns reports whether Cleave owns the partition of a recorded device: it did not exist before the claim, and no one
// else can have created it since.
func (s sessions) owns(d *records.Device) bool {
	return d.Partition != nil && !d.Partition.Existing && s.current(d.GPU, d.Session)
}

// keeps is owns for partitions of claims whose records may not have been renewed yet.
func (s sessions) keeps(b *backend) func(d *records.Device) bool {
	return func(d *records.Device) bool { return s.owns(d) || s.proves(b, d) }
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

// proves reports whether a partition of an earlier session is provably still the same.
func (s sessions) proves(b *backend, d *records.Device) bool {
	if d.Witness == "" || s.current(d.GPU, d.Session) {
		return false
	}
	g, err := locate(b, d)
	return err == nil && g != nil && s.Witness(g.Minor, d.Partition.GI) == d.Witness
}

// there reports whether all partitions of a prepared claim still exist. After an error that is unknown.
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

// check fails if there is a partition where a claim had one in an earlier driver session: it may be the claim's or someone else's. If there
// is none, the claim can have a new one, and a share of one that was created for another claim since. others are by GPU.
func (s sessions) check(ctx context.Context, b *backend, r *records.Record, others map[string]gpuRecords) error {
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
		own := func(p gpu.Partition) bool { return p.UUID == found.UUID }
		if found != nil && !slices.ContainsFunc(others[d.GPU].partitions(s.owns), own) {
			return fmt.Errorf("request %q: the NVIDIA driver was released or reloaded since partition %s was created, "+
				"and GPU instance %d, now in its place, may be a different one: delete the pod, and destroy the GPU instance, for instance "+
				"with nvidia-smi mig -dgi", d.Request, d.Device, found.GI)
		}
	}
	return nil
}

// renew records the current session for partitions of a record that provably still exist after the driver was released, in the spec of a
// prepared claim, too. The caller holds the locks of its GPUs.
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
		klog.FromContext(ctx).V(2).Info("A partition was carried over to the current driver session", "claim", r.Claim, "device", d.Device,
			"before", d.Session)
		d.Session, d.Witness, changed = l.sessions.of(d.GPU), "", true
	}
	if !changed {
		return r, nil
	}
	if err := l.write(renewed); err != nil || renewed.State != records.Prepared {
		return renewed, err
	}
	return renewed, noteSession(ctx, b, renewed)
}

// EndSession ends the driver's current session: Cleave no longer owns the partitions created in it, except those that
// later prove to be unchanged. Call it after SetWaiting and Quiesce, and before the driver is released; hw is the hardware as it
// was. An error means that the driver must not be released.
func (l *Ledger) EndSession(ctx context.Context, hw Hardware) error {
	if l.sessions.DriverSessions == nil {
		return nil
	}
	if err := l.closeRecords(ctx, hw); err != nil {
		return err
	}
	closeLayouts(ctx, l, hw)
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

// closeRecord records the witnesses that can later prove that a claim's partitions are unchanged.
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
