// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Reconcile compares the records with the API server: claims that are gone or allocated elsewhere are
// released, and claims whose records were corrupt get new ones. The failure of one claim is logged and does not stop the others.
func (p *Preparer) Reconcile(ctx context.Context, api API) {
	logger := klog.FromContext(ctx)
	if err := p.Ledger.Learn(ctx); err != nil {
		logger.Error(err, "Could not look for records that another plugin has written or removed; retrying at the next reconcile")
	}
	if err := p.Modes.load(ctx); err != nil {
		logger.Error(err, "Could not look for changes of MIG modes that another plugin has left; retrying at the next reconcile")
	}
	repair(ctx, p.Ledger)
	for _, r := range p.Ledger.index.claims() {
		if ctx.Err() != nil {
			return
		}
		if err := p.reconcileClaim(ctx, api, r); err != nil {
			logger.Error(err, "Could not reconcile a claim; leaving it unchanged", "claim", r.Claim)
		}
	}
	for _, uid := range p.Ledger.corrupt.all() {
		if err := p.remake(ctx, api, uid); err != nil {
			logger.Error(err, "Could not create the record of a claim again; retrying at the next reconcile", "claimUID", uid)
			continue
		}
		p.Ledger.corrupt.drop(uid)
		p.Shares.stopUnrecorded(ctx, uid)
	}
	p.Shares.reconcileServed(ctx, api)
}

// repair rewrites corrupt records from their copies.
func repair(ctx context.Context, l *Ledger) {
	for _, uid := range l.corrupt.takeCopied() {
		r := l.index.get(uid)
		if r == nil {
			continue
		}
		err := l.locked(ctx, r, func(now *records.Record) error { return l.write(now) })
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not rewrite a corrupt record; still using its copy", "claim", r.Claim)
		}
	}
}

// reconcileClaim releases a claim if the API server no longer has it allocated here and no process uses
// its GPUs. A force-deleted pod leaves the API server at once, while its containers may still be running: allocating its
// devices to another claim then would put two tenants on them.
func (p *Preparer) reconcileClaim(ctx context.Context, api API, r *records.Record) error {
	if awaitsChange(p.Ledger, r) {
		return nil
	}
	claim, gone, err := isGone(ctx, api, r)
	if err == nil && !gone {
		err = p.notePods(ctx, r, claim)
	}
	if err != nil || !gone {
		return err
	}
	return p.Ledger.locked(ctx, r, func(now *records.Record) error {
		if !sameDevices(now, r) {
			return nil // prepared again or unprepared meanwhile
		}
		// Check again, now that no one can prepare it: it may have been allocated the same devices again meanwhile.
		if _, gone, err = isGone(ctx, api, now); err != nil || !gone {
			return err
		}
		if err := p.users().checkIdle(ctx, now, true); err != nil {
			p.onRelease(now.Claim, err)
			if left := p.users().checkEnded(ctx, now); errors.Is(left, gpu.ErrInUse) {
				err = errors.Join(err, p.release(ctx, now.Claim.UID, podsLeft, false)) // so that its devices are tainted
			}
			return fmt.Errorf("the claim is gone from the API server, but its GPUs cannot be allocated again yet: %w", err)
		}
		pods, err := p.users().ended(ctx, now) // if they cannot be seen, one of them may be what uses a partition
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Releasing the devices of a claim that is gone", "claim", now.Claim, "gpus", now.GPUs())
		err = p.release(ctx, now.Claim.UID, pods, pods == podsEnded)
		if err != nil || p.Ledger.index.get(now.Claim.UID) == nil { // otherwise Recover continues
			p.onRelease(now.Claim, err)
		}
		return err
	})
}

// isGone reports whether the API server no longer has a claim allocated here, and returns the claim if it exists. The caller may hold
// locks of GPUs, for which others wait if the API server does not answer.
func isGone(ctx context.Context, api API, r *records.Record) (*resourceapi.ResourceClaim, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	claim, err := api.Claim(ctx, r.Claim.Namespace, r.Claim.Name)
	if err != nil {
		return nil, false, fmt.Errorf("read the claim from the API server: %w", err)
	}
	return claim, claim == nil || claim.UID != r.Claim.UID || !allocates(claim, r), nil
}

// remake prepares a claim whose record was corrupt again, if it still has pods.
func (p *Preparer) remake(ctx context.Context, api API, uid types.UID) error {
	claim, err := api.ClaimByUID(ctx, uid)
	if err != nil {
		return fmt.Errorf("look for claim %s: %w", uid, err)
	}
	if claim != nil && len(claim.Status.ReservedFor) > 0 {
		if driver := p.Ledger.Names.of(claim); driver != "" {
			_, err = p.Named(driver).prepare(ctx, claim, terms{adopt: true, counted: true})
			return err
		}
	}
	var errs []error
	for _, driver := range p.Ledger.Names.all() {
		errs = append(errs, p.specs(driver).RemoveClaim(uid))
		if p.metadata != nil {
			errs = append(errs, p.metadata.Remove(driver, uid))
		}
	}
	return errors.Join(errs...)
}

// allocates reports whether a claim's allocation still contains every device of its record.
func allocates(claim *resourceapi.ResourceClaim, r *records.Record) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	results := claim.Status.Allocation.Devices.Results
	for _, d := range r.Devices {
		if !slices.ContainsFunc(results, func(res resourceapi.DeviceRequestAllocationResult) bool {
			return res.Driver == r.Driver && res.Pool == d.Pool && res.Device == d.Device
		}) {
			return false
		}
	}
	return true
}
