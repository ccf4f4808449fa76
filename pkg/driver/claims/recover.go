// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Recover makes hardware and specs match the records: it removes incomplete work of a killed plugin, destroys the devices of
// claims that were released while the driver was away, writes missing specs and device metadata again, and looks for unmanaged
// partitions. It needs the hardware, and can be repeated at any time.
func (p *Preparer) Recover(ctx context.Context) {
	b := p.backend.Load()
	if b.hardware == nil {
		return
	}
	logger := klog.FromContext(ctx)
	for _, r := range p.Ledger.index.claims() {
		if ctx.Err() != nil {
			return
		}
		if r.State == records.Prepared && len(r.InSpec()) == 0 && len(r.WithEdits()) == 0 {
			continue
		}
		if awaitsChange(p.Ledger, r) {
			continue
		}
		if err := p.recoverClaim(ctx, b, r); err != nil {
			logger.Error(err, "Could not recover a claim; retrying at the next reconcile", "claim", r.Claim)
		}
	}
	p.Shares.recover(ctx, b)
	p.Partitions.FindUnmanaged(ctx)
	restoreMetadata(ctx, p, b)
}

// restoreMetadata writes missing device metadata of prepared claims again. All claims together have the time of one question to the
// API server: if it does not answer, locks of GPUs are held meanwhile.
func restoreMetadata(ctx context.Context, p *Preparer, b *backend) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for _, r := range p.Ledger.index.claims() {
		if ctx.Err() != nil {
			return
		}
		if !lacksMetadata(p, b, r) {
			continue
		}
		err := p.Ledger.locked(ctx, r, func(now *records.Record) error {
			if !lacksMetadata(p, b, now) {
				return nil
			}
			if err := p.metadata.Restore(ctx, now); err != nil {
				return err
			}
			p.onSpecRestored(ctx, now.Claim)
			return nil
		})
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not restore the device metadata of a claim; retrying at the next reconcile", "claim", r.Claim)
		}
	}
}

// lacksMetadata reports whether device metadata of a prepared claim is missing. That of a former name is written by its plugin if one
// runs, else soon.
func lacksMetadata(p *Preparer, b *backend, r *records.Record) bool {
	if p.metadata == nil || r.State != records.Prepared {
		return false
	}
	_, err := b.cdi.of(r.Driver)
	return err == nil && !p.metadata.Has(r)
}

// Unfinished reports whether Recover has something to remove: interrupted preparations, or released devices that could not
// be destroyed yet.
func (p *Preparer) Unfinished() bool {
	return slices.ContainsFunc(p.Ledger.index.claims(), func(r *records.Record) bool { return r.State != records.Prepared })
}

// recoverClaim acts on a record according to its state.
func (p *Preparer) recoverClaim(ctx context.Context, b *backend, r *records.Record) error {
	return p.Ledger.locked(ctx, r, func(now *records.Record) error {
		now, err := p.Ledger.renew(ctx, b, now)
		if err != nil {
			return err
		}
		if now.State != records.Prepared {
			klog.FromContext(ctx).Info("Cleaning up an unfinished claim", "claim", now.Claim, "state", now.State)
			err := p.removeLeft(ctx, b, now)
			p.onRelease(now.Claim, err)
			return err
		}
		_, err = p.intact(ctx, b, now)
		return err
	})
}

// noteSession rewrites the spec of a claim, which records the driver session. A missing spec is written by intact.
func noteSession(ctx context.Context, b *backend, r *records.Record) error {
	cdi, err := b.cdi.of(r.Driver)
	if err != nil || !cdi.HasClaim(r.Claim.UID) {
		return nil //nolint:nilerr // a plugin of that name runs
	}
	return cdi.WriteClaim(ctx, r)
}

// removeLeft cleans up after a claim that was interrupted, or released while processes of its pods were left. An interrupted
// claim may have been prepared before, so its pods may be running.
func (p *Preparer) removeLeft(ctx context.Context, b *backend, r *records.Record) error {
	pods, err := p.users().ended(ctx, r)
	if err != nil {
		return err
	}
	gone, settled, err := p.undo(ctx, b, r)
	settled, used := p.withoutPassedOn(ctx, r, gone, settled)
	if err = cmp.Or(err, used); err != nil && r.Unprepared { // otherwise the claim's pods may not have ended for good
		settled = p.releasable(ctx, b, r, settled, pods, err)
		err = errors.Join(err, p.markReleasing(p.Ledger.index.get(r.Claim.UID), pods, true, settled))
	}
	if err != nil {
		return err
	}
	p.Ledger.index.undone(r, gone)
	return p.forget(r)
}

// intact reports whether a prepared claim's partitions still exist, and restores a missing server or spec. If it fails, the
// state of the partitions is unknown.
func (p *Preparer) intact(ctx context.Context, b *backend, r *records.Record) (bool, error) {
	if there, err := p.Ledger.sessions.there(ctx, b, r); err != nil || !there {
		return false, err
	}
	if there, err := p.Shares.restart(ctx, b, r); err != nil || !there {
		return false, err
	}
	cdi, err := b.cdi.of(r.Driver)
	switch {
	case err != nil: // those of a former name are written soon, unless a plugin of that name runs
		return true, nil //nolint:nilerr // as above
	case len(r.WithEdits()) > 0 && !cdi.HasClaim(r.Claim.UID):
		err := cdi.WriteClaim(ctx, r)
		if err == nil {
			p.onSpecRestored(ctx, r.Claim)
		}
		return true, err
	case len(r.Partitions()) > 0:
		cdi.EnsureNodes(ctx, r)
	}
	return true, nil
}

// LackSpecs reports whether the spec or device metadata of a prepared claim is missing. Recover writes it.
func LackSpecs(p *Preparer) bool {
	b := p.backend.Load()
	return b.hardware != nil && slices.ContainsFunc(p.Ledger.index.claims(), func(r *records.Record) bool {
		cdi, err := b.cdi.of(r.Driver)
		lacks := r.State == records.Prepared && len(r.WithEdits()) > 0 && err == nil && !cdi.HasClaim(r.Claim.UID)
		return lacks || lacksMetadata(p, b, r)
	})
}
