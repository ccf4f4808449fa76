// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"maps"
	"slices"
)

// overdrawn adds a problem for each GPU of which more is allocated than there is: the scheduler's allocator looks at all counters of a pool
// (checkAvailableCounters), so that nothing of the pool that consumes counters is free. Of an invalid pool nothing is.
func (d *decoder) overdrawn(invalid map[string]bool) {
	sets, pools := map[string]bool{}, map[string]bool{}
	for id, left := range d.left {
		if left < 0 {
			sets[id.Set], pools[id.Pool] = true, true
		}
	}
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		d.view.Problems = append(d.view.Problems, "more of "+set+" is allocated than there is: until one of its claims ends, the scheduler "+
			"allocates nothing of the node that consumes counters")
	}
	d.view.overdrawn = len(sets) > 0
	for _, g := range d.gpus {
		for i := range g.view.Shapes {
			pool := g.devices[i].pool
			switch s := &g.view.Shapes[i]; {
			case s.State != "" || !invalid[pool] && (len(s.needs) == 0 || !pools[pool]):
			case s.isAllocated():
				s.State = Allocated
			case !s.closed():
				s.State = Blocked
			}
		}
	}
}
