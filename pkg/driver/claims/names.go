// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// A node's GPUs may be allocated under more than one driver name: after a change of --driver-name, claims of the earlier
// name keep what they have until their pods end. Each name has a Preparer, with its own records, layouts and CDI specs; all
// share the hardware and the locks. What is allocated under one, the others do not allocate, destroy or count as unmanaged.

// names are the Preparers of all driver names in this process.
type names struct {
	mu  sync.Mutex
	all []*Preparer // in order of names
	// changing are the GPUs, by device, whose MIG mode is being changed: what is done for all GPUs leaves them out, as it would
	// wait for their locks.
	changing sync.Map
	// find is called when another process may have begun to serve the node by another name, see Options.OnOtherProcess.
	find func(ctx context.Context)
}

// AddPeer has two driver names respect each other's claims. Their locks must be the same. Call it before the other is used.
func (p *Preparer) AddPeer(other *Preparer) {
	n := p.names
	n.mu.Lock()
	defer n.mu.Unlock()
	other.names, other.Ledger.names = n, n
	n.all = append(slices.Clone(n.all), other)
	slices.SortFunc(n.all, func(a, b *Preparer) int { return cmp.Compare(a.Ledger.id.Driver, b.Ledger.id.Driver) })
}

// RemovePeer undoes AddPeer: nothing is allocated under the other's name any more.
func (p *Preparer) RemovePeer(other *Preparer) {
	n := p.names
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = slices.DeleteFunc(slices.Clone(n.all), func(o *Preparer) bool { return o == other })
}

// isChanging reports whether the MIG mode of a GPU is being changed.
func (n *names) isChanging(device string) bool {
	_, changing := n.changing.Load(device)
	return changing
}

// everyone are the Preparers of all names, in order of names; the list must not be changed.
func (n *names) everyone() []*Preparer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all
}

// ledgers are those of all names, in order of names.
func (n *names) ledgers() []*Ledger {
	all := make([]*Ledger, 0, 1)
	for _, p := range n.everyone() {
		all = append(all, p.Ledger)
	}
	return all
}

// others are the ledgers of all names but one.
func (n *names) others(l *Ledger) []*Ledger {
	return slices.DeleteFunc(n.ledgers(), func(o *Ledger) bool { return o == l })
}

// corruptOn are the claims of all names whose records were set aside and that may
// have something of a GPU: those that have been allocated something of it, and those of which
// that is not known.
func (n *names) corruptOn(gpuDevice string) []types.UID {
	var all []types.UID
	for _, l := range n.ledgers() {
		for _, uid := range l.corrupt.all() {
			if r := l.allocated.get(uid); r == nil || slices.Contains(r.GPUs(), gpuDevice) {
				all = append(all, uid)
			}
		}
	}
	return all
}

// accountFor reports whether a claim has a record, of whatever name, or had one that is corrupt.
func (n *names) accountFor(uid types.UID) bool {
	return slices.ContainsFunc(n.ledgers(), func(l *Ledger) bool { return l.corrupt.has(uid) || l.index.get(uid) != nil })
}

// conflict is a device that is allocated under another driver name.
type conflict struct {
	extent
	driver string
	claim  records.Claim
	// waits: the claim has no record, and is prepared only once what it collides with is free.
	waits bool
}

func (c *conflict) String() string { return fmt.Sprintf("claim %s of driver %s", c.claim, c.driver) }

// conflicts are what is allocated of a GPU under other driver names: in order of names, records first, by claim UID.
func (l *Ledger) conflicts(gpuDevice string) []conflict {
	var all []conflict
	for _, o := range l.names.others(l) {
		for _, x := range []*index{o.index, o.allocated.index} {
			for _, r := range x.on(gpuDevice, "").all {
				for _, e := range extentsOf(r, gpuDevice) {
					all = append(all, conflict{e, o.id.Driver, r.Claim, x != o.index && precedes(l, o)})
				}
			}
		}
	}
	return all
}

// precedes decides between two claims of one GPU that were allocated under two names, and of which neither is prepared: if each waited
// for the other, neither would ever be. The name by which the node publishes nothing precedes: its allocations end, and keep others
// from being made. Whichever claim is prepared first keeps the other waiting by its record.
func precedes(l, o *Ledger) bool {
	if l.allocated.unpublished != o.allocated.unpublished {
		return l.allocated.unpublished
	}
	return l.id.Driver < o.id.Driver
}

// conflictWith returns the first that leaves no room for a device, or nil.
func conflictWith(all []conflict, want extent) *conflict {
	i := slices.IndexFunc(all, func(c conflict) bool { return c.collides(want) })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// LoadReadOnly reads the records of the driver name and changes nothing on disk: a plugin of that name may be running. Records
// that cannot be read are passed over.
func (l *Ledger) LoadReadOnly(ctx context.Context) error {
	uids, err := l.store.Names()
	if err != nil {
		return err
	}
	known := map[types.UID]*records.Record{}
	for _, r := range l.index.claims() {
		known[r.Claim.UID] = r
	}
	for _, uid := range uids {
		r, err := l.store.Read(uid)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not read a claim record of another driver name", "driver", l.id.Driver, "claimUID", uid)
			delete(known, uid) // what memory knows of it is all there is
			continue
		}
		if r == nil || r.BootID != l.bootID {
			continue
		}
		l.index.set(r)
		delete(known, uid)
	}
	for _, r := range known {
		l.allocated.keep(r)
		l.index.removeIf(r)
	}
	devices, err := l.layouts.gpus()
	if err != nil {
		return err
	}
	l.layouts.reload(ctx, l.bootID, devices)
	return nil
}
