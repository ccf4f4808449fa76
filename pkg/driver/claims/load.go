// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Load reads all records into memory: call it once, before the first Prepare. Records of an earlier boot are dropped,
// since no container outlives a reboot and the kubelet prepares the claims of restarted pods again; their devices count as
// allocated until the API server has been asked. Corrupt records are set aside.
func (p *Preparer) Load(ctx context.Context, notify Notify) error {
	p.Ledger.corrupt.notify = notify
	p.Ledger.store.OnCopy(func(uid types.UID, cause error) { p.Ledger.corrupt.noteCopy(ctx, uid, cause) })
	uids, err := p.Ledger.store.Names()
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	for _, uid := range uids {
		r, err := p.Ledger.store.Read(uid)
		if corrupt := (*store.CorruptError)(nil); errors.As(err, &corrupt) {
			if err := p.Ledger.setAside(ctx, uid, corrupt.Err); err != nil {
				logger.Error(err, "Could not set aside a corrupt claim record")
			}
			continue
		}
		if err != nil {
			logger.Error(err, "Setting aside a claim record that cannot be read", "claimUID", uid)
			if err := p.Ledger.setAside(ctx, uid, err); err != nil {
				logger.Error(err, "Could not set aside an unreadable claim record")
			}
			continue
		}
		if r == nil {
			continue
		}
		if r.BootID != p.Ledger.bootID {
			logger.Info("Dropping a claim record of an earlier boot", "claim", r.Claim, "recordBootID", r.BootID, "bootID", p.Ledger.bootID)
			p.Ledger.allocated.enter(allocationOf(r))
			if err := p.forget(r); err != nil {
				logger.Error(err, "Could not remove a claim record of an earlier boot")
			}
			continue
		}
		p.Ledger.index.set(r)
	}
	for _, driver := range p.Ledger.Names.all() {
		missRecords(ctx, p.Ledger, p.specs(driver))
	}
	p.Ledger.layouts.load(ctx, p.Ledger.bootID, notify)
	if err := p.Modes.load(ctx); err != nil {
		return err
	}
	logger.Info("Loaded claim records", "dir", p.Ledger.store.Dir(), "claims", len(p.Ledger.index.claims()))
	return nil
}

// missRecords finds claims that have a spec but no record. A record is written before the spec and removed after it, so it was lost, for
// example if a plugin set it aside and ended before it could ask the API server.
func missRecords(ctx context.Context, l *Ledger, specs SpecRemover) {
	logger := klog.FromContext(ctx)
	uids, err := specs.Claims()
	if err != nil {
		logger.Error(err, "Could not look for claims whose records were lost")
	}
	for _, uid := range uids {
		if l.index.get(uid) != nil || l.corrupt.has(uid) {
			continue
		}
		if r, err := l.store.Read(uid); r != nil || err != nil {
			continue // another plugin has written it since
		}
		logger.Info("A claim has a CDI spec but no record; creating its record again from the API server", "claimUID", uid)
		l.corrupt.add(uid)
	}
}

// setAside marks the claim of a corrupt record for the next Reconcile, moves the record aside, and reports it. A record that cannot be
// moved is overwritten when it is created again.
func (l *Ledger) setAside(ctx context.Context, uid types.UID, cause error) error {
	l.corrupt.add(uid)
	aside, err := l.store.SetAside(uid)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Error(cause, "Set aside a corrupt claim record", "claimUID", uid, "movedTo", aside)
	if l.corrupt.notify != nil {
		l.corrupt.notify("CorruptClaimRecord", fmt.Sprintf("The record of claim %s could not be read and was moved to %s: %v. "+
			"If the claim still has pods here, its record is created again from the API server.", uid, aside, cause))
	}
	return nil
}
