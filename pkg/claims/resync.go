// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/records"
)

// find returns the record of a claim from memory or, if another process prepared it, from disk; nil if there is none.
func (e *Engine) find(uid types.UID) (*records.Record, error) {
	if r := e.index.get(uid); r != nil {
		return r, nil
	}
	r, err := e.store.Read(uid)
	if r != nil && r.BootID != e.bootID {
		return nil, nil //nolint:nilnil // what it stood for has not outlived the reboot
	}
	return r, err
}

// findEarlier is find for a claim that may be none: who looks at GPUs for no claim gives no UID.
func (e *Engine) findEarlier(uid types.UID) (*records.Record, error) {
	if uid == "" {
		return nil, nil //nolint:nilnil // no claim has no record
	}
	return e.find(uid)
}

// lockFor locks the named GPUs and those that the claim holds by an earlier allocation, and brings the index up to
// date for them. A claim keeps its UID when it is deallocated and allocated anew.
func (e *Engine) lockFor(ctx context.Context, uid types.UID, names []string) (*Held, error) {
	for {
		all := names
		before, err := e.findEarlier(uid)
		if corrupt := (*records.CorruptError)(nil); err != nil && !errors.As(err, &corrupt) {
			return nil, err
		}
		if before != nil {
			all = append(slices.Clone(names), before.GPUs()...)
		}
		held, err := e.locks.Acquire(ctx, all)
		if err != nil {
			return nil, e.explainWrite(err)
		}
		if held.Foreign {
			if err := e.resyncAll(ctx, uid, all); err != nil {
				held.Release()
				return nil, err
			}
			held.Seen()
		}
		if after := e.index.get(uid); after == nil || covers(all, after.GPUs()) {
			return held, nil
		}
		held.Release() // the claim got other GPUs meanwhile: lock those too
	}
}

// covers tells whether every one of names is in all.
func covers(all, names []string) bool {
	for _, n := range names {
		if !slices.Contains(all, n) {
			return false
		}
	}
	return true
}

// resync brings the index up to date with the records on disk for the named GPUs, whose locks the caller holds:
// another process may have changed them. Records of other GPUs may be changing right now and are left alone.
func (e *Engine) resync(ctx context.Context, self types.UID, names []string) error {
	uids, err := e.store.Names()
	if err != nil {
		return err
	}
	e.layouts.reload(ctx, e.bootID, names)
	known := e.index.on(names)
	for _, uid := range uids {
		r, err := e.store.Read(uid)
		if corrupt := (*records.CorruptError)(nil); errors.As(err, &corrupt) {
			klog.FromContext(ctx).Error(err, "Passing over a corrupt claim record")
			delete(known, uid) // what memory knows of it is all there is
			continue
		}
		if err != nil {
			return err
		}
		if r == nil || r.BootID != e.bootID {
			continue
		}
		if uid == self || slices.ContainsFunc(r.GPUs(), func(n string) bool { return slices.Contains(names, n) }) {
			e.index.set(r)
			delete(known, uid)
		}
	}
	for _, r := range known { // unprepared by another process, or moved to other GPUs, whose locks are foreign to us too
		e.index.removeIf(r)
	}
	return nil
}
