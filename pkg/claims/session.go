// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// DriverSessions tells the driver's sessions apart: a partition that was created in an earlier one is gone, or was created
// anew by someone else with the same IDs and the same UUID.
type DriverSessions interface {
	// Of is the present session of the GPU of a whole-GPU device.
	Of(device string) string
	// Unbroken reports whether that is the GPU's first session in this boot.
	Unbroken(device string) bool
	// Witness of a GPU instance is the same only as long as the instance exists; empty where there is none.
	Witness(minor, gi int) string
	// End ends the sessions of all GPUs, durably.
	End() error
}

// sessionOf is the present session of a GPU; empty where sessions are not told apart.
func (e *Engine) sessionOf(gpuDevice string) string {
	if e.sessions == nil {
		return ""
	}
	return e.sessions.Of(gpuDevice)
}

// ofSession reports whether a session on record is the present one. Records of releases that wrote none count as of the
// session in which they are first read; from then on they name it, see renew.
func (e *Engine) ofSession(gpuDevice, session string) bool {
	return session == "" || e.sessions == nil || session == e.sessionOf(gpuDevice)
}

// owns reports whether the partition of a device on record is the engine's own: it was not there before the claim, and no
// one else can have created it since.
func (e *Engine) owns(d *records.Device) bool {
	return d.Partition != nil && !d.Partition.Existing && e.ofSession(d.GPU, d.Session)
}

// outlived lists the partitions of a record that were created in an earlier session of the driver.
func (e *Engine) outlived(r *records.Record) []*records.Device {
	var found []*records.Device
	for _, d := range r.Partitions() {
		if !d.Partition.Existing && !e.ofSession(d.GPU, d.Session) {
			found = append(found, d)
		}
	}
	return found
}

// checkOutlived fails if something lies where a claim had a partition in an earlier session of the driver: it may be the
// claim's, and it may be someone else's. Where nothing does, the claim can have a new one.
func (e *Engine) checkOutlived(ctx context.Context, b *backend, r *records.Record) error {
	for _, d := range e.outlived(r) {
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
			return fmt.Errorf("request %q: the NVIDIA driver was released or reloaded since partition %s was created, and GPU instance %d, which is there now, need not be it: "+
				"delete the pod, and destroy the GPU instance, for instance with nvidia-smi mig -dgi", d.Request, d.Device, found.GI)
		}
	}
	return nil
}

// stamp notes in a record the sessions in which its partitions are created.
func (e *Engine) stamp(r *records.Record) {
	for _, d := range r.Partitions() {
		d.Session = e.sessionOf(d.GPU)
	}
}

// renew notes the present session in a record: for partitions of which an earlier release noted none, and for those that are
// proven to be the same as before the driver was released. The caller holds the locks of its GPUs.
func (e *Engine) renew(ctx context.Context, b *backend, r *records.Record) (*records.Record, error) {
	if e.sessions == nil {
		return r, nil
	}
	renewed := r.Clone()
	changed := false
	for _, d := range renewed.Partitions() {
		if d.Partition.Existing || d.Session != "" && !e.isSame(b, d) {
			continue
		}
		klog.FromContext(ctx).V(2).Info("A partition is of the present session of the driver", "claim", r.Claim, "device", d.Device, "before", d.Session)
		d.Session, d.Witness, changed = e.sessionOf(d.GPU), "", true
	}
	if !changed {
		return r, nil
	}
	return renewed, e.write(renewed)
}

// isSame reports whether the partition of an earlier session is proven to be the same still.
func (e *Engine) isSame(b *backend, d *records.Device) bool {
	if d.Witness == "" || e.ofSession(d.GPU, d.Session) {
		return false
	}
	g, err := locate(b, d)
	return err == nil && g != nil && e.sessions.Witness(g.Minor, d.Partition.GI) == d.Witness
}

// EndSession ends the driver's present session: what was created in it counts as the engine's own no more, but for partitions
// that prove to be the same later. Call it after SetWaiting and Quiesce, and before the driver is released; hw is the hardware
// as it was. An error means that the driver must not be released.
func (e *Engine) EndSession(ctx context.Context, hw Hardware) error {
	if e.sessions == nil {
		return nil
	}
	for _, o := range e.everyone() {
		if err := o.closeRecords(ctx, &backend{hardware: hw}); err != nil {
			return err
		}
	}
	return e.sessions.End()
}

// closeRecords is closeRecord for all claims of the engine's driver name.
func (e *Engine) closeRecords(ctx context.Context, b *backend) error {
	uids, err := e.store.Names()
	if err != nil {
		return err
	}
	for _, uid := range uids {
		r, err := e.store.Read(uid)
		if corrupt := (*records.CorruptError)(nil); errors.As(err, &corrupt) || err == nil && r == nil {
			continue
		}
		if err != nil {
			return err
		}
		if err := e.closeRecord(ctx, b, r); err != nil {
			return fmt.Errorf("note the driver's session for claim %s: %w", r.Claim, err)
		}
	}
	return nil
}

// closeRecord notes what proves later that partitions of a claim are the same.
func (e *Engine) closeRecord(ctx context.Context, b *backend, r *records.Record) error {
	if len(r.Partitions()) == 0 || r.BootID != e.bootID {
		return nil
	}
	held, err := e.lockFor(ctx, r.Claim.UID, r.GPUs())
	if err != nil {
		return err
	}
	defer held.Release()
	now := e.index.get(r.Claim.UID)
	if now == nil {
		return nil
	}
	closed := now.Clone()
	for _, d := range closed.Partitions() {
		if !e.owns(d) {
			continue
		}
		d.Session = e.sessionOf(d.GPU)
		if g := b.hardware.Node().Find(d.GPU); g != nil && d.Partition.UUID != "" {
			d.Witness = e.sessions.Witness(g.Minor, d.Partition.GI)
		}
	}
	return e.write(closed)
}

// layout returns what the engine created of a GPU ahead of claims in the driver's present session, or nil; it must not be
// changed.
func (e *Engine) layout(gpuDevice string) *records.Layout {
	l := e.layouts.get(gpuDevice)
	if l != nil && !e.ofSession(gpuDevice, l.Session) {
		return nil
	}
	return l
}

// hasPartition reports whether a record, of whatever driver name, names a partition of a GPU as created for it in the driver's
// present session.
func (e *Engine) hasPartition(gpuDevice string, p gpu.Partition) bool {
	return slices.ContainsFunc(e.everyone(), func(o *Engine) bool { return o.index.hasPartition(gpuDevice, p, o.owns) })
}
