// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"time"
)

// Observed is the state of another driver name on the node.
type Observed struct {
	// Runs: a plugin with that name is running and serves its claims itself.
	Runs bool
	// Published: its ResourceSlices still exist, so the scheduler may allocate from them.
	Published bool
	// Taken: another vendor's driver uses the name on this node.
	Taken bool
	// Listed: its claims were listed from the API server after its slices were deleted.
	Listed bool
	// Records and Allocated count its claims: those with a record, and allocated ones without.
	Records, Allocated int
	// Idle is how long nothing of the name has been found.
	Idle time.Duration
}

// Linger is how long a name is served after its last claim is gone: the kubelet may still have to unprepare a claim
// whose pod was force-deleted, which only the kubelet knows, and a claim may have been allocated from slices that were
// just deleted.
const Linger = 30 * time.Second

// Plan is the decision about another driver name.
type Plan struct {
	// Hold: do not publish any device of the node yet.
	Hold bool
	// Serve the kubelet under that name as well, so that its pods can end.
	Serve bool
	// Retire: nothing is left of the name; its files can be deleted.
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

// Hold explains why another driver name prevents publishing devices of the node; empty if it does not.
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
