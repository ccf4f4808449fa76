// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/records"
)

// Recover brings hardware and specs in line with the records: what a killed plugin left half made is removed, what a
// claim gave back while the driver was away is destroyed, missing specs are written again, and partitions of others are
// looked for. It needs the hardware, and can be repeated at any time.
func (e *Engine) Recover(ctx context.Context) {
	b := e.backend.Load()
	if b.hardware == nil {
		return
	}
	logger := klog.FromContext(ctx)
	for _, r := range e.index.claims() {
		if ctx.Err() != nil {
			return
		}
		if len(r.InSpec()) == 0 {
			continue
		}
		if err := e.recoverClaim(ctx, b, r); err != nil {
			logger.Error(err, "Could not recover a claim; it is tried again at the next reconcile", "claim", r.Claim)
		}
	}
	started := !e.recovered.Swap(true)
	e.recoverSharing(ctx, b, started)
	e.FindForeign(ctx)
}

// Unfinished tells whether Recover has something to remove: claims that were cut short, or that gave back what could not
// be taken away yet.
func (e *Engine) Unfinished() bool {
	return slices.ContainsFunc(e.index.claims(), func(r *records.Record) bool { return r.State != records.Prepared })
}

// recoverClaim does what a record's state asks for.
func (e *Engine) recoverClaim(ctx context.Context, b *backend, r *records.Record) error {
	held, err := e.lockFor(ctx, r.Claim.UID, r.GPUs())
	if err != nil {
		return err
	}
	defer held.Release()
	now := e.index.get(r.Claim.UID)
	if now == nil {
		return nil
	}
	if now, err = e.renew(ctx, b, now); err != nil {
		return err
	}
	if now.State != records.Prepared {
		klog.FromContext(ctx).Info("Removing what is left of a claim", "claim", now.Claim, "state", now.State)
		if err := e.undo(ctx, b, now); err != nil {
			return err
		}
		return e.forget(now.Claim.UID)
	}
	_, err = e.intact(ctx, b, now)
	return err
}
