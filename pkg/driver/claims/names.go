// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// A node's GPUs may be allocated under more than one driver name: after a change of --driver-name, claims of the former name keep
// their devices until their pods end. One ledger holds the claims of all names. Devices allocated under one name are not allocated
// under another, since the scheduler counts each name separately.

// Names are the driver names under which GPUs of the node are allocated.
type Names struct {
	// id belongs to the chosen name, under which the node publishes.
	id     Identity
	mu     sync.Mutex
	former []string // sorted
}

// all returns the names, the chosen one first.
func (n *Names) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string{n.id.Driver}, n.former...)
}

// Former returns the names other than the chosen one, sorted: those that were added, and those of claims with a record.
func (n *Names) Former() []string { return n.all()[1:] }

// Add includes the claims that are allocated GPUs of the node under a former name.
func (n *Names) Add(driver string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at, found := slices.BinarySearch(n.former, driver); driver != n.id.Driver && !found {
		n.former = slices.Insert(slices.Clone(n.former), at, driver)
	}
}

// Remove reverts Add, once nothing is allocated under the name any more.
func (n *Names) Remove(driver string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.former = slices.DeleteFunc(slices.Clone(n.former), func(name string) bool { return name == driver })
}

// identity returns the node's identity in allocations under a name.
func (n *Names) identity(driver string) Identity { return Identity{Driver: driver, Pool: n.id.Pool} }

// of returns the name under which a claim is allocated a device of the node: the chosen one before others, which may be another
// vendor's by now; empty if it is allocated none.
func (n *Names) of(claim *resourceapi.ResourceClaim) string {
	if claim.Status.Allocation == nil {
		return ""
	}
	for _, name := range n.all() {
		if slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
			return r.Pool == n.id.Pool && r.Driver == name
		}) {
			return name
		}
	}
	return ""
}

// precedes decides between two unprepared claims of one GPU that were allocated under two names: otherwise each would wait for
// the other forever. A former name precedes the chosen one: its allocations only end, while they block new ones.
// The claim that is prepared first blocks the other by its record.
func (n *Names) precedes(a, b string) bool {
	if chosen := n.id.Driver; (a == chosen) != (b == chosen) {
		return b == chosen
	}
	return a < b
}

// Named serves the claims of one driver name. All methods are safe for concurrent use.
type Named struct {
	*Preparer
	id Identity
}

// Named serves the claims of a driver name: the chosen one, or a former one.
func (p *Preparer) Named(driver string) Named { return Named{p, p.Ledger.Names.identity(driver)} }

// Driver returns the name.
func (p Named) Driver() string { return p.id.Driver }

// Records returns the records of the name's claims, in order of claim UID; they must not be changed.
func (p Named) Records() []*records.Record { return Under(p.id.Driver, p.Ledger.index.claims()) }

// Record returns the record of a claim of the name, nil if it has none. It must not be changed.
func (p Named) Record(uid types.UID) *records.Record {
	if r := p.Ledger.index.get(uid); r != nil && r.Driver == p.id.Driver {
		return r
	}
	return nil
}

// Prepare is Preparer.Prepare for a claim of the chosen name.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error) {
	return p.Named(p.Ledger.id.Driver).Prepare(ctx, claim)
}

// Unprepare is Named.Unprepare for a claim of the chosen name.
func (p *Preparer) Unprepare(ctx context.Context, claim records.Claim) error {
	return p.Named(p.Ledger.id.Driver).Unprepare(ctx, claim)
}

// conflict is a device that is allocated under another driver name.
type conflict struct {
	extent
	driver string
	claim  records.Claim
	// waits: the claim has no record, and is prepared only once the devices it collides with are free.
	waits bool
}

func (c *conflict) String() string { return fmt.Sprintf("claim %s of driver %s", c.claim, c.driver) }

// conflicts returns the devices of a GPU that are allocated under other driver names: records first, by claim UID.
func (l *Ledger) conflicts(gpuDevice, driver string) []conflict {
	var all []conflict
	for _, x := range []*index{l.index, l.allocated.index} {
		for _, r := range x.on(gpuDevice, "").all {
			if r.Driver == driver {
				continue
			}
			for _, e := range extentsOf(r, gpuDevice) {
				all = append(all, conflict{e, r.Driver, r.Claim, x != l.index && l.Names.precedes(driver, r.Driver)})
			}
		}
	}
	return all
}

// conflictWith returns the first conflict that collides with a device, or nil.
func conflictWith(all []conflict, want extent) *conflict {
	i := slices.IndexFunc(all, func(c conflict) bool { return c.collides(want) })
	if i < 0 {
		return nil
	}
	return &all[i]
}
