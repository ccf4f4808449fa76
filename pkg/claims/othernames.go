// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// A node's GPUs may be allocated under more than one driver name: after a change of --driver-name, claims of the earlier
// name keep what they have until their pods end. Each name has an engine, with its own records, layouts and CDI specs; all
// share the hardware and the locks. What one has allocated, the others do not allocate, destroy or count as unmanaged.

// names are the engines of all driver names in this process.
type names struct {
	mu  sync.Mutex
	all []*Engine // in order of names
	// find is called when another process may have begun to serve the node by another name. It may call Join, and is
	// called with locks of GPUs held.
	find func(ctx context.Context)
}

// Join has two engines respect each other's claims. Their locks must be the same. Call it before the other is used.
func (e *Engine) Join(other *Engine) {
	e.names.mu.Lock()
	defer e.names.mu.Unlock()
	other.names = e.names
	e.names.all = append(slices.Clone(e.names.all), other)
	slices.SortFunc(e.names.all, func(a, b *Engine) int { return cmp.Compare(a.id.Driver, b.id.Driver) })
}

// Part ends what Join began: nothing is allocated under the other's name any more.
func (e *Engine) Part(other *Engine) {
	e.names.mu.Lock()
	defer e.names.mu.Unlock()
	e.names.all = slices.DeleteFunc(slices.Clone(e.names.all), func(o *Engine) bool { return o == other })
}

// others are the engines of the other names, in order of names.
func (e *Engine) others() []*Engine {
	e.names.mu.Lock()
	defer e.names.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.names.all), func(o *Engine) bool { return o == e })
}

// everyone is the engine and those of the other names, in order of names.
func (e *Engine) everyone() []*Engine {
	e.names.mu.Lock()
	defer e.names.mu.Unlock()
	return e.names.all
}

// Driver is the name under which the engine's claims are allocated.
func (e *Engine) Driver() string { return e.id.Driver }

// Lend gives the engine of another name the hardware, as long as this one has it: both lose it by SetWaiting. It reports
// whether the other has it.
func (e *Engine) Lend(other *Engine, cdi CDI) bool {
	e.names.mu.Lock()
	defer e.names.mu.Unlock()
	b := e.backend.Load()
	if b.hardware != nil {
		other.SetHardware(b.hardware, cdi)
	}
	return b.hardware != nil
}

// Equipped reports whether the engine has the hardware.
func (e *Engine) Equipped() bool { return e.backend.Load().hardware != nil }

// Maintain is Recover and Reconcile as one call: Quiesce waits for it.
func (e *Engine) Maintain(ctx context.Context, api API) {
	e.calls.RLock()
	defer e.calls.RUnlock()
	e.Recover(ctx)
	e.Reconcile(ctx, api)
}

// LookAt reads the records of an engine's name and changes nothing on disk: a plugin of that name may be running. Records
// that cannot be read are passed over.
func (e *Engine) LookAt(ctx context.Context) error {
	uids, err := e.store.Names()
	if err != nil {
		return err
	}
	known := map[types.UID]*records.Record{}
	for _, r := range e.index.claims() {
		known[r.Claim.UID] = r
	}
	for _, uid := range uids {
		r, err := e.store.Read(uid)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not read a claim record of another driver name", "driver", e.id.Driver, "claimUID", uid)
			delete(known, uid) // what memory knows of it is all there is
			continue
		}
		if r == nil || r.BootID != e.bootID {
			continue
		}
		e.index.set(r)
		delete(known, uid)
	}
	for _, r := range known {
		e.index.removeIf(r)
	}
	devices := []string(nil)
	if e.layouts.store != nil {
		if devices, err = e.layouts.store.Names(); err != nil {
			return err
		}
	}
	e.layouts.reload(ctx, e.bootID, devices)
	return nil
}

// resyncAll brings the indexes of all names up to date for the named GPUs, whose locks the caller holds.
func (e *Engine) resyncAll(ctx context.Context, self types.UID, gpus []string) error {
	if e.names.find != nil {
		e.names.find(ctx)
	}
	for _, o := range e.others() {
		if err := o.resync(ctx, "", gpus); err != nil {
			return fmt.Errorf("read what is allocated under the driver name %s: %w", o.id.Driver, err)
		}
	}
	return e.resync(ctx, self, gpus)
}

// conflict is a claim of another driver name.
type conflict struct {
	driver string
	claim  records.Claim
}

func (c *conflict) String() string { return fmt.Sprintf("claim %s of driver %s", c.claim, c.driver) }

// otherHolder is the claim of another driver name that has been allocated something of what a device needs, or nil. Shares
// of two names exclude each other: the scheduler counts each name's alone.
func (e *Engine) otherHolder(want *records.Device) *conflict {
	for _, o := range e.others() {
		for _, x := range []*index{o.index, o.allocated} {
			if r := x.excluder(want); r != nil {
				return &conflict{o.id.Driver, r.Claim}
			}
		}
	}
	return nil
}

// excluder is the record that excludes a device of another driver name, or nil; of several that with the lowest UID.
func (x *index) excluder(want *records.Device) *records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	var found *records.Record
	for uid, r := range x.byGPU[want.GPU] {
		if slices.ContainsFunc(r.Devices, func(d records.Device) bool { return excludes(&d, want) }) && (found == nil || uid < found.Claim.UID) {
			found = r
		}
	}
	return found
}

// excludes reports whether what is allocated under one name leaves no room for a device of another: only two partitions
// in different places leave it.
func excludes(allocated, want *records.Device) bool {
	if allocated.GPU != want.GPU || allocated.AdminAccess {
		return false
	}
	return allocated.Partition == nil || want.Partition == nil || allocated.Partition.Placement.Overlaps(want.Partition.Placement)
}

// checkOtherNames fails if a claim of another driver name has what a device needs.
func (e *Engine) checkOtherNames(d *records.Device) error {
	if other := e.otherHolder(d); other != nil {
		return fmt.Errorf("request %q: device %s of GPU %s is allocated to %s, by which name Cleave ran on this node: it is free once that claim's pods have ended",
			d.Request, d.Device, d.UUID, other)
	}
	return nil
}

// otherHeldAt reports whether a claim of another driver name has anything of a GPU where a partition lies or is to lie.
func (e *Engine) otherHeldAt(gpuDevice string, at gpu.Placement) bool {
	return e.otherHolder(&records.Device{GPU: gpuDevice, Partition: &gpu.Partition{Placement: at}}) != nil
}

// otherShapes are the partitions of a GPU that are allocated under other driver names.
func (e *Engine) otherShapes(g *gpu.GPU) []gpu.Shape {
	var places []gpu.Partition
	for _, o := range e.others() {
		for _, x := range []*index{o.index, o.allocated} {
			for _, r := range x.claims() {
				for _, d := range r.Partitions() {
					if d.GPU == g.PCI.DeviceName() && !slices.ContainsFunc(places, func(p gpu.Partition) bool { return p.Place() == d.Partition.Place() }) {
						places = append(places, *d.Partition)
					}
				}
			}
		}
	}
	return shapesOf(g, places)
}

// corruptOfAll are the claims of all driver names whose records were set aside.
func (e *Engine) corruptOfAll() []types.UID {
	var all []types.UID
	for _, o := range e.everyone() {
		all = append(all, o.corrupt.all()...)
	}
	return all
}

// accounted reports whether a claim has a record, of whatever driver name, or had one that is corrupt.
func (e *Engine) accounted(uid types.UID) bool {
	return slices.ContainsFunc(e.everyone(), func(o *Engine) bool { return o.corrupt.has(uid) || o.index.get(uid) != nil })
}

// AllRecords are what claims of all driver names have been allocated, as far as it is known: records, in order of names and
// claim UIDs, and after those of a name its claims that have none. They must not be changed.
func (e *Engine) AllRecords() []*records.Record {
	var all []*records.Record
	for _, o := range e.everyone() {
		all = append(all, o.index.claims()...)
		for _, r := range o.allocated.claims() {
			if o.index.get(r.Claim.UID) == nil {
				all = append(all, r)
			}
		}
	}
	return all
}

// AdoptLayouts takes over what was made ahead of claims under another driver name, of which no plugin may run: it is
// Cleave's all the same. The new record comes first: a kill in between leaves the place in both, and both are read before
// anything is destroyed.
func (e *Engine) AdoptLayouts(ctx context.Context, from *Engine) error {
	if e.layouts.store == nil || from.layouts.store == nil {
		return nil
	}
	devices, err := from.layouts.store.Names()
	if err != nil {
		return err
	}
	var errs []error
	for _, device := range devices {
		if err := e.adoptLayout(ctx, from, device); err != nil {
			errs = append(errs, fmt.Errorf("take over the layout of %s from driver %s: %w", device, from.id.Driver, err))
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) adoptLayout(ctx context.Context, from *Engine, device string) error {
	held, err := e.lockFor(ctx, "", []string{device})
	if err != nil {
		return err
	}
	defer held.Release()
	theirs, err := from.layouts.store.Read(device)
	if err != nil {
		return err
	}
	if theirs != nil && theirs.BootID == e.bootID && e.ofSession(device, theirs.Session) {
		merged := mergedLayout(e.layout(device), theirs)
		merged.Session = e.sessionOf(device)
		if err := e.layouts.write(merged); err != nil {
			return e.explainWrite(err)
		}
		klog.FromContext(ctx).Info("Took over the layout of a GPU from another driver name", "gpu", device, "driver", from.id.Driver, "partitions", len(theirs.Places))
	}
	if err := from.layouts.store.Remove(device); err != nil {
		return err
	}
	from.layouts.forget(device)
	return nil
}

// mergedLayout has the places of both layouts of a GPU. Of two GPUs that were in one place, it has those of the engine's own.
func mergedLayout(own, theirs *records.Layout) *records.Layout {
	first := own
	if own == nil {
		first = theirs
	}
	merged := *first
	merged.Places = slices.Clone(first.Places)
	if own == nil || own.UUID != theirs.UUID {
		return &merged
	}
	for _, at := range theirs.Places {
		if !slices.Contains(merged.Places, at) {
			merged.Places = append(merged.Places, at)
		}
	}
	slices.SortFunc(merged.Places, func(a, b gpu.Place) int {
		return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.ProfileID, b.ProfileID))
	})
	return &merged
}

// forget takes a layout out of memory.
func (l *layouts) forget(gpuDevice string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(gpuDevice, nil)
}
