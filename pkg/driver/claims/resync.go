// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// find returns the record of a claim from memory or, if another process prepared it, from disk; nil if there is none.
func (l *Ledger) find(uid types.UID) (*records.Record, error) {
	if r := l.index.get(uid); r != nil {
		return r, nil
	}
	r, err := l.store.Read(uid)
	if r != nil && r.BootID != l.bootID {
		return nil, nil //nolint:nilnil // partitions of an earlier boot no longer exist
	}
	return r, err
}

// lockFor locks the named GPUs and those of an earlier allocation of the claim, and brings the index up to date for
// them. A claim keeps its UID when it is deallocated and allocated again.
func (l *Ledger) lockFor(ctx context.Context, uid types.UID, names []string) (*Held, error) {
	for {
		all := names
		if uid != "" { // otherwise the GPUs are not locked for a claim
			before, err := l.find(uid)
			if corrupt := (*store.CorruptError)(nil); err != nil && !errors.As(err, &corrupt) {
				return nil, err
			}
			if before != nil {
				all = append(slices.Clone(names), before.GPUs()...)
			}
		}
		held, err := l.locks.Acquire(ctx, all)
		if err != nil {
			return nil, explainWrite(l.store.Dir(), err)
		}
		if held.Stale {
			if err := l.resync(ctx, uid, all); err != nil {
				held.Release()
				return nil, err
			}
			held.Seen()
		}
		if after := l.index.get(uid); after == nil || covers(all, after.GPUs()) {
			return held, nil
		}
		held.Release() // the claim was allocated other GPUs meanwhile: lock those too
	}
}

// locked calls a function with a claim's current record once its GPUs are locked, unless it has none any more.
func (l *Ledger) locked(ctx context.Context, r *records.Record, do func(now *records.Record) error) error {
	held, err := l.lockFor(ctx, r.Claim.UID, r.GPUs())
	if err != nil {
		return err
	}
	defer held.Release()
	if now := l.index.get(r.Claim.UID); now != nil {
		return do(now)
	}
	return nil
}

// covers reports whether every one of names is in all.
func covers(all, names []string) bool {
	for _, n := range names {
		if !slices.Contains(all, n) {
			return false
		}
	}
	return true
}

// resync brings the index up to date with the records on disk for the named GPUs, whose locks the caller holds:
// another process may have changed them. Records of other GPUs may be changing at the same time and are left alone.
func (l *Ledger) resync(ctx context.Context, self types.UID, names []string) error {
	uids, err := l.store.Names()
	if err != nil {
		return err
	}
	l.layouts.reload(ctx, l.bootID, names)
	known := map[types.UID]*records.Record{}
	for _, name := range names {
		for _, r := range l.index.on(name, "").all {
			known[r.Claim.UID] = r
		}
	}
	for _, uid := range uids {
		r, err := l.store.Read(uid)
		if err != nil && l.index.get(uid) == nil && !errors.As(err, new(*store.CorruptError)) {
			return err
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Skipping a claim record that cannot be read", "claimUID", uid)
			delete(known, uid) // keep the copy in memory
			continue
		}
		if r == nil || r.BootID != l.bootID {
			continue
		}
		if uid == self || slices.ContainsFunc(r.GPUs(), func(n string) bool { return slices.Contains(names, n) }) {
			l.index.set(r)
			delete(known, uid)
		}
	}
	for _, r := range known { // unprepared by another process, or moved to other GPUs, whose locks another process held too
		l.allocated.keep(r)
		l.index.removeIf(r)
	}
	return nil
}

// Learn updates the index with records that another process has written or removed, such as a plugin that is being replaced
// and prepared claims after this one had read the records. Otherwise such changes are noticed when a GPU's lock is taken.
func (l *Ledger) Learn(ctx context.Context) error {
	uids, err := l.store.Names()
	if err != nil {
		return err
	}
	unknown := map[types.UID]bool{}
	for _, uid := range uids {
		unknown[uid] = true
	}
	var gpus []string
	for _, r := range l.index.claims() {
		if !unknown[r.Claim.UID] {
			gpus = append(gpus, r.GPUs()...)
		}
		delete(unknown, r.Claim.UID)
	}
	for _, uid := range uids {
		if !unknown[uid] {
			continue
		}
		if r, err := l.store.Read(uid); err == nil && r != nil && r.BootID == l.bootID { // otherwise it is set aside at the next start
			gpus = append(gpus, r.GPUs()...)
		}
	}
	slices.Sort(gpus)
	for _, name := range slices.Compact(gpus) {
		held, err := l.lockFor(ctx, "", []string{name})
		if err != nil {
			return err
		}
		held.Release()
	}
	return nil
}
