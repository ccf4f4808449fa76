// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// index mirrors the records on disk in memory: who holds which GPU, so that an overlap check costs the same with one
// claim on the node or with hundreds. What it says of a GPU is true only while that GPU's lock is held.
type index struct {
	mu      sync.Mutex
	byClaim map[types.UID]*records.Record
	byGPU   map[string]map[types.UID]*records.Record
	// changed is told of every change, see Options.
	changed func()
	// waiting is closed at the next change; nil while nobody waits for one.
	waiting chan struct{}
}

func newIndex() *index {
	return &index{byClaim: map[types.UID]*records.Record{}, byGPU: map[string]map[types.UID]*records.Record{}, changed: func() {}}
}

// get returns the record of a claim, or nil.
func (x *index) get(uid types.UID) *records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byClaim[uid]
}

// set enters a record in place of the claim's earlier one.
func (x *index) set(r *records.Record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(r.Claim.UID)
	x.byClaim[r.Claim.UID] = r
	for _, name := range r.GPUs() {
		if x.byGPU[name] == nil {
			x.byGPU[name] = map[types.UID]*records.Record{}
		}
		x.byGPU[name][r.Claim.UID] = r
	}
	x.notify()
}

// next is closed at the next change.
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

// hasAll reports whether nothing has changed about these claims.
func (x *index) hasAll(all []blocker) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(all, func(b blocker) bool { return x.byClaim[b.record.Claim.UID] != b.record })
}

// removeIf forgets a claim if its record is still the given one.
func (x *index) removeIf(r *records.Record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byClaim[r.Claim.UID] == r {
		x.drop(r.Claim.UID)
	}
}

// remove forgets a claim.
func (x *index) remove(uid types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(uid)
}

func (x *index) drop(uid types.UID) {
	r := x.byClaim[uid]
	if r == nil {
		return
	}
	delete(x.byClaim, uid)
	for _, name := range r.GPUs() {
		delete(x.byGPU[name], uid)
	}
	x.notify()
}

// holders returns the records of claims other than uid that have what a device needs, in order of their UIDs. Claims with
// admin access look at a device without having it.
func (x *index) holders(want *records.Device, uid types.UID) []*records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	var found []*records.Record
	for other, r := range x.byGPU[want.GPU] {
		if other != uid && holds(r, want) {
			found = append(found, r)
		}
	}
	return byUID(found)
}

// byUID puts records in order.
func byUID(all []*records.Record) []*records.Record {
	slices.SortFunc(all, func(a, b *records.Record) int { return cmp.Compare(a.Claim.UID, b.Claim.UID) })
	return all
}

// on returns the records that are entered for any of the GPUs, by claim.
func (x *index) on(names []string) map[types.UID]*records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	known := map[types.UID]*records.Record{}
	for _, name := range names {
		maps.Copy(known, x.byGPU[name])
	}
	return known
}

// holds tells whether a record's claim has something of what a device needs.
func holds(r *records.Record, want *records.Device) bool {
	for i := range r.Devices {
		if d := &r.Devices[i]; d.GPU == want.GPU && !d.AdminAccess && overlap(d, want) {
			return true
		}
	}
	return false
}

// overlap tells whether two devices of one GPU exclude each other: two partitions may not, two shares of a kind do not,
// unless the GPU is one claim's alone.
func overlap(a, b *records.Device) bool {
	if a.Share != nil && b.Share != nil && a.Share.Kind == b.Share.Kind && !a.Share.Exclusive && !b.Share.Exclusive {
		return false // they share by intent
	}
	return a.Partition == nil || b.Partition == nil || a.Partition.Placement.Overlaps(b.Partition.Placement)
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

// partition returns the partition that a claim has at a shape, and that is still its own or was there before it, or nil.
func (x *index) partition(s gpu.Shape, owned func(d *records.Device) bool) *gpu.Partition {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.byGPU[s.GPU.PCI.DeviceName()] {
		for _, d := range r.Partitions() {
			if d.Device == s.Name() && r.State == records.Prepared && (d.Partition.Existing || owned(d)) {
				p := *d.Partition
				return &p // placements of claims do not overlap: there is one at most
			}
		}
	}
	return nil
}

// hasPartition reports whether a record names a partition of a GPU as its own.
func (x *index) hasPartition(gpuDevice string, p gpu.Partition, owned func(d *records.Device) bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.byGPU[gpuDevice] {
		for _, d := range r.Partitions() {
			if d.GPU == gpuDevice && samePlace(*d.Partition, p) && owned(d) {
				return true
			}
		}
	}
	return false
}

// heldAt tells whether a claim holds anything of a GPU where a partition lies or is to lie.
func (x *index) heldAt(gpuDevice string, at gpu.Placement) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	want := &records.Device{GPU: gpuDevice, Partition: &gpu.Partition{Placement: at}}
	for _, r := range x.byGPU[gpuDevice] {
		if holds(r, want) {
			return true
		}
	}
	return false
}

// releasing tells whether a claim that gave back what a device needs has not let go of it yet.
func (x *index) releasing(want *records.Device) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range x.byGPU[want.GPU] {
		if r.State == records.Releasing && holds(r, want) {
			return true
		}
	}
	return false
}

// amounts are what shares of a GPU take together.
type amounts struct {
	memory, cores int64
}

func (a *amounts) add(s *records.Share) {
	a.memory += s.Memory
	a.cores += s.Cores
}

// sharedBy is what a claim has of a shared GPU.
type sharedBy struct {
	record *records.Record
	amounts
}

// shared is what each claim but one has of a shared GPU, in order of their UIDs. The pods of a claim that is Releasing have
// ended: the scheduler has given its part to others.
func (x *index) shared(gpuDevice string, but types.UID) []sharedBy {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []sharedBy
	for uid, r := range x.byGPU[gpuDevice] {
		if uid == but || r.State == records.Releasing {
			continue
		}
		by := sharedBy{record: r}
		for i := range r.Devices {
			if d := &r.Devices[i]; d.GPU == gpuDevice && d.Share != nil {
				by.add(d.Share)
			}
		}
		all = append(all, by)
	}
	slices.SortFunc(all, func(a, b sharedBy) int { return cmp.Compare(a.record.Claim.UID, b.record.Claim.UID) })
	return all
}

// paced lists the records of claims, other than one, that asked for an interval of a GPU's time slices, in order of their
// UIDs. They asked for the same: others are refused.
func (x *index) paced(gpuDevice string, but types.UID) []*records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	var found []*records.Record
	for uid, r := range x.byGPU[gpuDevice] {
		if uid != but && r.State == records.Prepared && intervalOn(r, gpuDevice) != "" {
			found = append(found, r)
		}
	}
	return byUID(found)
}

// interval returns the first of them, or nil, and the interval.
func (x *index) interval(gpuDevice string, but types.UID) (holder *records.Record, interval string) {
	all := x.paced(gpuDevice, but)
	if len(all) == 0 {
		return nil, ""
	}
	return all[0], intervalOn(all[0], gpuDevice)
}

// intervalOn is the interval that a claim asked for on a GPU; empty for none.
func intervalOn(r *records.Record, gpuDevice string) string {
	for _, d := range r.Shares(gpu.TimeSlice) {
		if d.GPU == gpuDevice && d.Share.Interval != "" {
			return d.Share.Interval
		}
	}
	return ""
}

// mpsClaims lists the claims that a GPU's MPS server serves, sorted.
func (x *index) mpsClaims(gpuDevice string) []types.UID {
	x.mu.Lock()
	defer x.mu.Unlock()
	var uids []types.UID
	for uid, r := range x.byGPU[gpuDevice] {
		if r.State != records.Releasing && slices.ContainsFunc(r.Shares(gpu.MPS), func(d *records.Device) bool { return d.GPU == gpuDevice }) {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// sharers tells whether other claims, whose pods may run, share the GPU of a device in the same way.
func (x *index) sharers(d *records.Device, but types.UID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for uid, r := range x.byGPU[d.GPU] {
		if uid != but && r.State == records.Prepared && slices.ContainsFunc(r.Shares(d.Share.Kind), func(o *records.Device) bool { return o.GPU == d.GPU }) {
			return true
		}
	}
	return false
}
