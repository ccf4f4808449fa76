// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Ledger holds the allocations and layouts of the node, under all driver names: records of claims and layouts of GPUs,
// on disk and mirrored in memory, and the locks that guard both.
type Ledger struct {
	// id belongs to the chosen name, under which the node publishes.
	id     Identity
	Names  *Names
	bootID string
	store  *records.Store
	locks  *Locks
	index  *index
	// allocated are the known allocations, recorded or not.
	allocated *allocations
	corrupt   corruptRecords
	layouts   layouts
	sessions  sessions
	// changing are the GPUs, by device name, whose MIG mode is being changed: operations on all GPUs skip them, as they would
	// wait for their locks.
	changing sync.Map
	// changed is called when the result of Occupied may have changed, see Options.
	changed func()
}

// Records returns the records of all claims, in order of claim UID; they must not be changed.
func (l *Ledger) Records() []*records.Record { return l.index.claims() }

// Record returns the record of a claim, nil if it has none. It must not be changed.
func (l *Ledger) Record(uid types.UID) *records.Record { return l.index.get(uid) }

// Claim identifies the claim of a UID; without a record, only by the UID.
func (l *Ledger) Claim(uid types.UID) records.Claim {
	if r := l.index.get(uid); r != nil {
		return r.Claim
	}
	return records.Claim{UID: uid}
}

// Allocations returns all known allocations: Records, followed by Unrecorded. They must not be
// changed.
func (l *Ledger) Allocations() []*records.Record { return append(l.index.claims(), l.Unrecorded()...) }

// Under filters records by driver name.
func Under(driver string, all []*records.Record) []*records.Record {
	return slices.DeleteFunc(all, func(r *records.Record) bool { return r.Driver != driver })
}

// isChanging reports whether the MIG mode of a GPU is being changed, or the GPU reset.
func (l *Ledger) isChanging(device string) bool {
	_, changing := l.changing.Load(device)
	return changing
}

// awaitsChange reports whether the MIG mode of one of a claim's GPUs is being changed, or the GPU reset. Who locked the claim's GPUs would
// wait for that with the others in hand, which other claims may have by now.
func awaitsChange(l *Ledger, r *records.Record) bool {
	return slices.ContainsFunc(r.GPUs(), l.isChanging)
}

// corruptOn returns the claims whose records were set aside and that may have devices of a GPU: their allocation includes
// one, or is unknown.
func (l *Ledger) corruptOn(gpuDevice string) []types.UID {
	return slices.DeleteFunc(l.corrupt.all(), func(uid types.UID) bool {
		r := l.allocated.get(uid)
		return r != nil && !slices.Contains(r.GPUs(), gpuDevice)
	})
}

// accountsFor reports whether a claim has a record, or had one that is corrupt.
func (l *Ledger) accountsFor(uid types.UID) bool {
	return l.corrupt.has(uid) || l.index.get(uid) != nil
}

// Unrecorded returns the known allocations of claims without a record, in order of claim UID.
func (l *Ledger) Unrecorded() []*records.Record { return l.allocated.without(l.allocated.claims()) }

// view holds the allocations on the GPUs of a claim at one moment. It stays valid while their locks are held.
type view struct {
	// have is the claim's own record, others are the records of other claims of its driver name, by GPU.
	have   *records.Record
	others map[string]gpuRecords
	// known is the claim's allocation as known before it was prepared; nil for none.
	known *records.Record
	// conflicts are colliding allocations under other driver names, by GPU.
	conflicts map[string][]conflict
}

// look reads the index once for a Prepare under a driver name; the caller holds the GPUs' locks.
func (l *Ledger) look(uid types.UID, driver string, gpus []string) view {
	v := view{conflicts: map[string][]conflict{}, known: l.allocated.get(uid)}
	v.have, v.others = l.index.look(uid, gpus)
	for _, name := range gpus {
		o := v.others[name]
		o.all = Under(driver, o.all)
		v.others[name] = o
		if conflicts := slices.DeleteFunc(l.conflicts(name, driver), func(c conflict) bool { return c.waits }); len(conflicts) > 0 {
			v.conflicts[name] = conflicts
		}
	}
	return v
}

// write writes a record and enters it into the index.
func (l *Ledger) write(r *records.Record) error {
	if err := l.store.Write(r); err != nil {
		return explainWrite(l.store.Dir(), err)
	}
	l.index.set(r)
	return nil
}

// remove removes a claim's record.
func (l *Ledger) remove(uid types.UID) error {
	if err := l.store.Remove(uid); err != nil {
		return err
	}
	if r := l.index.get(uid); r != nil {
		l.allocated.keep(r)
	}
	l.index.remove(uid)
	return nil
}

// layout returns the partitions of a GPU that were created ahead of claims in the driver's current session, or nil; it must
// not be changed.
func (l *Ledger) layout(gpuDevice string) *records.Layout {
	layout := l.layouts.get(gpuDevice)
	if layout != nil && !l.sessions.current(gpuDevice, layout.Session) {
		return nil
	}
	return layout
}

// explainWrite adds the remedy to the one write error that an admin can fix.
func explainWrite(dir string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: free space on the file system of %s; the claim is retried", err, dir)
	}
	return err
}

// corruptRecords are the claims whose records were set aside since the last reconcile.
type corruptRecords struct {
	mu     sync.Mutex
	uids   []types.UID
	notify Notify
	// copied are claims whose records are corrupt and whose copies are in use.
	copied []types.UID
}

// noteCopy reports that the copy of a record is in use, once until it is repaired.
func (c *corruptRecords) noteCopy(ctx context.Context, uid types.UID, cause error) {
	c.mu.Lock()
	known := slices.Contains(c.copied, uid)
	if !known {
		c.copied = append(c.copied, uid)
	}
	c.mu.Unlock()
	if known {
		return
	}
	klog.FromContext(ctx).Error(cause, "A claim record is corrupt; using its copy", "claimUID", uid)
	if c.notify != nil {
		c.notify("CorruptClaimRecord", fmt.Sprintf("The record of claim %s could not be read; its copy is used: %v. Check the node's disk.",
			uid, cause))
	}
}

// takeCopied returns the claims in copied and clears it.
func (c *corruptRecords) takeCopied() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	copied := c.copied
	c.copied = nil
	return copied
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
