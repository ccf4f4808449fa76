// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/records"
)

// API is what the engine asks of the API server, off the path of Prepare.
type API interface {
	// Claim returns a claim, or nil if there is none of that name.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// ClaimByUID returns a claim of any namespace, or nil if there is none. It lists claims: use it rarely.
	ClaimByUID(ctx context.Context, uid types.UID) (*resourceapi.ResourceClaim, error)
}

// Notify tells an admin of something that needs a look, such as by an Event on the node.
type Notify func(reason, message string)

// corruptRecords are the claims whose records were set aside since the last reconcile.
type corruptRecords struct {
	mu     sync.Mutex
	uids   []types.UID
	notify Notify
}

// Load reads all records into memory: call it once, before the first Prepare. Records of an earlier boot are dropped,
// since no container outlives a reboot and the kubelet prepares again what it restarts. Corrupt ones are set aside.
func (e *Engine) Load(ctx context.Context, notify Notify) error {
	e.corrupt.notify = notify
	uids, err := e.store.Names()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	for _, uid := range uids {
		r, err := e.store.Read(uid)
		if corrupt := (*records.CorruptError)(nil); errors.As(err, &corrupt) {
			if err := e.setAside(ctx, uid, corrupt.Err); err != nil {
				logger.Error(err, "Leaving a corrupt claim record where it is")
			}
			continue
		}
		if err != nil {
			logger.Error(err, "Setting aside a claim record that cannot be read", "claimUID", uid)
			if err := e.setAside(ctx, uid, err); err != nil {
				logger.Error(err, "Leaving an unreadable claim record where it is")
			}
			continue
		}
		if r == nil {
			continue
		}
		if r.BootID != e.bootID {
			logger.Info("Dropping a claim record of an earlier boot", "claim", r.Claim, "recordBootID", r.BootID, "bootID", e.bootID)
			if err := e.forget(uid); err != nil {
				logger.Error(err, "Leaving a claim record of an earlier boot where it is")
			}
			continue
		}
		e.index.set(r)
	}
	e.layouts.load(ctx, e.bootID, notify)
	logger.Info("Loaded claim records", "dir", e.store.Dir(), "claims", len(e.index.claims()))
	return nil
}

// setAside takes a corrupt record out of service, says so, and remembers the claim for the next Reconcile.
func (e *Engine) setAside(ctx context.Context, uid types.UID, cause error) error {
	aside, err := e.store.SetAside(uid)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Error(cause, "Set aside a corrupt claim record", "claimUID", uid, "movedTo", aside)
	e.corrupt.add(uid)
	if e.corrupt.notify != nil {
		e.corrupt.notify("CorruptClaimRecord", fmt.Sprintf("The record of claim %s could not be read and was moved to %s: %v. "+
			"If the claim still has pods here, its record is made again from the API server.", uid, aside, cause))
	}
	return nil
}

// Reconcile compares the records with the API server: claims that are gone or allocated elsewhere give their GPUs
// back, and claims whose records were corrupt get new ones. One claim's trouble is logged and does not stop the others.
func (e *Engine) Reconcile(ctx context.Context, api API) {
	logger := klog.FromContext(ctx)
	for _, r := range e.index.claims() {
		if ctx.Err() != nil {
			return
		}
		if err := e.reconcileClaim(ctx, api, r); err != nil {
			logger.Error(err, "Could not reconcile a claim; it stays as it is", "claim", r.Claim)
		}
	}
	for _, uid := range e.corrupt.all() {
		if err := e.remake(ctx, api, uid); err != nil {
			logger.Error(err, "Could not make the record of a claim again; it is tried at the next reconcile", "claimUID", uid)
			continue
		}
		e.corrupt.drop(uid)
		e.stopUnrecorded(ctx, uid)
	}
	e.reconcileServed(ctx, api)
}

// reconcileClaim gives back what a claim holds if the API server says that it holds nothing here and no process uses
// its GPUs. A pod deleted by force leaves the API server at once while its containers still run for a while: handing
// their GPU on would put two tenants on it.
func (e *Engine) reconcileClaim(ctx context.Context, api API, r *records.Record) error {
	claim, gone, err := e.isGone(ctx, api, r)
	if err == nil && !gone {
		err = e.notePods(ctx, r, claim)
	}
	if err != nil || !gone {
		return err
	}
	held, err := e.lockFor(ctx, r.Claim.UID, r.GPUs())
	if err != nil {
		return err
	}
	defer held.Release()
	now := e.index.get(r.Claim.UID)
	if now == nil || !sameDevices(now, r) {
		return nil // prepared anew or unprepared since we looked
	}
	// Look again, now that nobody can prepare it: it may have been given the same devices again meanwhile.
	if _, gone, err = e.isGone(ctx, api, now); err != nil || !gone {
		return err
	}
	if err := e.checkIdle(ctx, now, true); err != nil {
		return fmt.Errorf("the claim is gone from the API server, but its GPUs cannot be handed on yet: %w", err)
	}
	klog.FromContext(ctx).Info("Releasing what a claim held that is gone", "claim", now.Claim, "gpus", now.GPUs())
	return e.release(ctx, now.Claim.UID)
}

// remake prepares a claim again whose record was corrupt, if it still has pods.
func (e *Engine) remake(ctx context.Context, api API, uid types.UID) error {
	claim, err := api.ClaimByUID(ctx, uid)
	if err != nil {
		return fmt.Errorf("look for claim %s: %w", uid, err)
	}
	if claim == nil || len(claim.Status.ReservedFor) == 0 || !allocatedHere(claim, e.id) {
		return e.specs.RemoveClaim(uid)
	}
	_, err = e.prepare(ctx, claim, true)
	return err
}

// allocates tells whether a claim's allocation still names every device of its record.
func allocates(claim *resourceapi.ResourceClaim, r *records.Record, id Identity) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	results := claim.Status.Allocation.Devices.Results
	for _, d := range r.Devices {
		if !slices.ContainsFunc(results, func(res resourceapi.DeviceRequestAllocationResult) bool {
			return res.Driver == id.Driver && res.Pool == d.Pool && res.Device == d.Device
		}) {
			return false
		}
	}
	return true
}

// allocatedHere tells whether a claim has a device of this node.
func allocatedHere(claim *resourceapi.ResourceClaim, id Identity) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourceapi.DeviceRequestAllocationResult) bool {
			return r.Driver == id.Driver && r.Pool == id.Pool
		})
}

func (c *corruptRecords) add(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.uids, uid) {
		c.uids = append(c.uids, uid)
	}
}

func (c *corruptRecords) drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uids = slices.DeleteFunc(c.uids, func(u types.UID) bool { return u == uid })
}

func (c *corruptRecords) has(uid types.UID) bool { return slices.Contains(c.all(), uid) }

func (c *corruptRecords) all() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.uids)
}
