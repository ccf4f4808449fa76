// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"time"
)

// Observed is what is known of another driver name.
type Observed struct {
	// Runs: a plugin of that name runs, which serves its claims itself.
	Runs bool
	// Published: its ResourceSlices are there, from which the scheduler may allocate.
	Published bool
	// Taken: another vendor's driver has the name on this node.
	Taken bool
	// Listed: its claims were asked of the API server since the slices went.
	Listed bool
	// Records and Allocated count its claims: those with a record, and those that are allocated and have none.
	Records, Allocated int
	// Idle is for how long nothing of it was there.
	Idle time.Duration
}

// Linger is how long a name is served after the last of its claims is gone: the kubelet may still have to unprepare a claim
// whose pod was deleted by force, which only the kubelet knows, and a claim may have been allocated from slices that were
// just deleted.
const Linger = 30 * time.Second

// Plan is what to do about another driver name.
type Plan struct {
	// Hold: publish no device of the node yet.
	Hold bool
	// Serve the kubelet by that name, too, so that its pods can end.
	Serve bool
	// Retire: nothing is left of it; its files can go.
	Retire bool
}

// Decide is pure.
func Decide(o Observed) Plan {
	p := Plan{Hold: o.Published || !o.Listed}
	if o.Runs || o.Published {
		return p
	}
	nothing := o.Listed && o.Records == 0 && o.Allocated == 0
	p.Retire = nothing && o.Idle >= Linger
	p.Serve = !p.Retire && !o.Taken
	return p
}

// Hold is why no device of the node may be published because of another driver name; empty where it may.
func Hold(driver string, o Observed) string {
	switch {
	case !Decide(o).Hold:
		return ""
	case o.Published:
		return fmt.Sprintf("driver %s (the name Cleave previously used on this node) still publishes them: the kubelet removes its "+
			"ResourceSlices half a minute after its plugin is gone", driver)
	default:
		return fmt.Sprintf("it is not known yet which claims of driver %s (the name Cleave previously used on this node) have GPUs", driver)
	}
}
