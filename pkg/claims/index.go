package claims

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/records"
)

// index mirrors the records on disk in memory: who holds which GPU, so that an overlap check costs the same with one
// claim on the node or with hundreds. What it says of a GPU is true only while that GPU's lock is held.
type index struct {
	mu      sync.Mutex
	byClaim map[types.UID]*records.Record
	byGPU   map[string]map[types.UID]*records.Record
}

func newIndex() *index {
	return &index{byClaim: map[types.UID]*records.Record{}, byGPU: map[string]map[types.UID]*records.Record{}}
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
}

// holder returns the record of a claim other than uid that holds a GPU, or nil. Claims with admin access look at a
// device without holding it. Where more than one claim holds it, which must not be, the lowest UID is named.
func (x *index) holder(name string, uid types.UID) *records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	var found *records.Record
	for other, r := range x.byGPU[name] {
		if other != uid && holds(r, name) && (found == nil || other < found.Claim.UID) {
			found = r
		}
	}
	return found
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

// holds tells whether a record's claim has a GPU for itself.
func holds(r *records.Record, name string) bool {
	for _, d := range r.Devices {
		if d.GPU == name && !d.AdminAccess {
			return true
		}
	}
	return false
}

// claims returns all records, in order of claim UID.
func (x *index) claims() []*records.Record {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make([]*records.Record, 0, len(x.byClaim))
	for _, r := range x.byClaim {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *records.Record) int { return cmp.Compare(a.Claim.UID, b.Claim.UID) })
	return all
}
