// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// ClaimLister is the part of the API server that a Follower uses.
type ClaimLister interface {
	// Claim returns a claim, or nil if there is none of that name.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// Each calls a function for the claims of all namespaces, for as long as it returns true.
	Each(ctx context.Context, visit func(claim *resourceapi.ResourceClaim) bool) error
}

// Intervals between reads of an allocated claim without a record: the first is immediate, and each pause is twice the previous one.
const (
	followFirst = time.Second
	followMost  = 30 * time.Second
	// askLimit bounds reading one claim.
	askLimit = 10 * time.Second
)

// Follower learns from the API server which claims are allocated devices of this node but have no record, because they are not
// prepared yet, or no longer prepared but still allocated. Claims cannot be selected by node, and watching them would make each node
// follow all claims of the cluster. So they are listed rarely; claims that were found, or whose records were removed,
// are polled until they are deallocated. Its methods are called from one goroutine.
type Follower struct {
	ledger *Ledger
	api    ClaimLister
	// node returns the node's GPUs; nil while they are unknown.
	node  func() *gpu.Node
	asked map[types.UID]pace
}

// NewFollower makes a follower. It must be called before the records are loaded.
func NewFollower(l *Ledger, api ClaimLister, node func() *gpu.Node) *Follower {
	l.allocated.followed = true
	return &Follower{ledger: l, api: api, node: node}
}

// pace determines when to read a claim again.
type pace struct {
	next  time.Time
	pause time.Duration
}

// List reads all claims of the cluster, in pages.
func (f *Follower) List(ctx context.Context) error {
	l, node := f.ledger, f.node()
	before := l.allocated.claims()
	found := map[types.UID]*records.Record{}
	err := f.api.Each(ctx, func(claim *resourceapi.ResourceClaim) bool {
		if r := l.Names.allocation(claim, node); r != nil {
			found[claim.UID] = r
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list the claims with devices of the node: %w", err)
	}
	for _, r := range before {
		if found[r.Claim.UID] == nil {
			l.allocated.removeIf(r) // unless something was noted since
		}
	}
	for _, r := range found {
		l.allocated.enter(r)
	}
	return nil
}

// Follow polls the claims without a record that are due, and returns when the next one is due; zero if none is until another
// record is removed.
func (f *Follower) Follow(ctx context.Context, now time.Time) (again time.Time, err error) {
	for _, r := range f.ledger.Unrecorded() {
		f.ledger.allocated.enter(placed(r, f.node())) // a GPU may have been discovered, or have changed its MIG mode
	}
	asked := map[types.UID]pace{}
	for _, r := range f.ledger.Unrecorded() {
		p := f.asked[r.Claim.UID]
		asked[r.Claim.UID] = p
		if err == nil && !now.Before(p.next) {
			var allocated bool
			if allocated, err = f.ask(ctx, r); err == nil && !allocated {
				delete(asked, r.Claim.UID)
				continue
			}
			p = p.later(now, f.longest(r))
			asked[r.Claim.UID] = p
		}
		if !now.Before(p.next) { // not read, as an earlier read failed
			p.next = now.Add(followFirst)
		}
		if again.IsZero() || p.next.Before(again) {
			again = p.next
		}
	}
	f.asked = asked
	return again, err
}

// longest returns the longest pause between two reads of a claim. While a claim of a former driver name is allocated, its devices are
// withheld under the chosen name, so its deallocation has to be detected soon.
func (f *Follower) longest(r *records.Record) time.Duration {
	if r.Driver != f.ledger.id.Driver {
		return followFirst
	}
	return followMost
}

// later returns the pace after a read.
func (p pace) later(now time.Time, most time.Duration) pace {
	pause := min(max(2*p.pause, followFirst), most)
	return pace{now.Add(pause), pause}
}

// ask reads whether a claim is still allocated devices of this node, and notes the allocation.
func (f *Follower) ask(ctx context.Context, r *records.Record) (allocated bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	claim, err := f.api.Claim(ctx, r.Claim.Namespace, r.Claim.Name)
	if err != nil {
		return false, fmt.Errorf("read claim %s of driver %s: %w", r.Claim, r.Driver, err)
	}
	var now *records.Record
	if claim != nil && claim.UID == r.Claim.UID {
		now = f.ledger.Names.allocation(claim, f.node())
	}
	if now == nil {
		f.ledger.allocated.removeIf(r)
		return false, nil
	}
	f.ledger.allocated.enter(now)
	return true, nil
}
