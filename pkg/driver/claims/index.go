// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// index mirrors the records on disk in memory, by GPU, so that an overlap check costs the same with one
// claim on the node or with hundreds. Its information about a GPU is valid only while that GPU's lock is held.
type index struct {
	mu      sync.Mutex
	byClaim map[types.UID]*records.Record
	byGPU   map[string]map[types.UID]*records.Record
	// changed is called on every change, see Options.OnAllocate; named with the driver name of each record.
	changed func()
	named   func(driver string)
	// waiting is closed at the next change; nil while no one waits for one.
	waiting chan struct{}
}

func newIndex() *index {
	return &index{
		byClaim: map[types.UID]*records.Record{}, byGPU: map[string]map[types.UID]*records.Record{},
		changed: func() {}, named: func(string) {},
	}
}

// get returns the record of a claim, or nil.
func (x *index) get(uid types.UID) *records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byClaim[uid]
}

// look returns the record of a claim, or nil, and the records of other claims on each of the given GPUs.
func (x *index) look(uid types.UID, gpus []string) (have *records.Record, others map[string]gpuRecords) {
	x.mu.Lock()
	defer x.mu.Unlock()
	others = make(map[string]gpuRecords, len(gpus))
	for _, name := range gpus {
		others[name] = x.recordsOn(name, uid)
	}
	return x.byClaim[uid], others
}

// on returns the records on a GPU except that of one claim.
func (x *index) on(gpuDevice string, but types.UID) gpuRecords {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.recordsOn(gpuDevice, but)
}

// recordsOn implements on; the caller holds mu.
func (x *index) recordsOn(gpuDevice string, but types.UID) gpuRecords {
	all := make([]*records.Record, 0, len(x.byGPU[gpuDevice]))
	for uid, r := range x.byGPU[gpuDevice] {
		if uid != but {
			all = append(all, r)
		}
	}
	return gpuRecords{gpuDevice, byUID(all)}
}

// claims returns all records, in order of claim UID.
func (x *index) claims() []*records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make([]*records.Record, 0, len(x.byClaim))
	for _, r := range x.byClaim {
		all = append(all, r)
	}
	return byUID(all)
}

func byUID(all []*records.Record) []*records.Record {
	slices.SortFunc(all, func(a, b *records.Record) int { return cmp.Compare(a.Claim.UID, b.Claim.UID) })
	return all
}

// set enters a record, replacing the claim's earlier one. An identical record is not a change: otherwise a caller that reads the records
// repeatedly would wake others, and itself, for nothing.
func (x *index) set(r *records.Record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.named(r.Driver)
	before := x.unlink(r.Claim.UID)
	x.byClaim[r.Claim.UID] = r
	for _, name := range r.GPUs() {
		if x.byGPU[name] == nil {
			x.byGPU[name] = map[types.UID]*records.Record{}
		}
		x.byGPU[name][r.Claim.UID] = r
	}
	if !reflect.DeepEqual(before, r) {
		x.notify()
	}
}

// undone notes that the devices of a record no longer exist although the record remains: no other claim may rely on
// them, for example on the interval being set. gone are its partitions among them.
func (x *index) undone(r *records.Record, gone []*records.Device) {
	if len(gone) > 0 || r.State == records.Prepared && len(r.InSpec()) > 0 {
		x.set(withoutGone(r, gone))
	}
}

// withoutGone returns a record that says which of its partitions no longer exist: one that is found in such a place is not the claim's.
func withoutGone(r *records.Record, gone []*records.Device) *records.Record {
	left := r.Clone()
	if left.State == records.Prepared {
		left.State = records.Releasing
	}
	for _, d := range left.Partitions() {
		if slices.ContainsFunc(gone, func(g *records.Device) bool { return g.Request == d.Request && g.Device == d.Device }) {
			d.Partition.Existing = true
		}
	}
	return left
}

// removeIf removes a claim's record if it is still the given one.
func (x *index) removeIf(r *records.Record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byClaim[r.Claim.UID] == r {
		x.drop(r.Claim.UID)
	}
}

// remove removes a claim's record.
func (x *index) remove(uid types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(uid)
}

func (x *index) drop(uid types.UID) {
	if x.unlink(uid) != nil {
		x.notify()
	}
}

// unlink removes a claim's record without notification and returns it; nil if there is none.
func (x *index) unlink(uid types.UID) *records.Record {
	r := x.byClaim[uid]
	if r == nil {
		return nil
	}
	delete(x.byClaim, uid)
	for _, name := range r.GPUs() {
		delete(x.byGPU[name], uid)
	}
	return r
}

// next returns a channel that is closed at the next change.
func (x *index) next() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.waiting == nil {
		x.waiting = make(chan struct{})
	}
	return x.waiting
}

// notify reports a change; the caller holds mu.
func (x *index) notify() {
	x.changed()
	if x.waiting != nil {
		close(x.waiting)
		x.waiting = nil
	}
}

// hasAll reports whether the records of all blockers are unchanged.
func (x *index) hasAll(all []blocker) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(all, func(b blocker) bool { return x.byClaim[b.record.Claim.UID] != b.record })
}
