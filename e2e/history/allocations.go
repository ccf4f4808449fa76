// SPDX-License-Identifier: Apache-2.0

package history

import (
	"maps"
	"slices"
	"time"
)

// allocation is a time for which a claim had the same devices at the API server.
type allocation struct {
	span
	claim *claim
	began Event
	// devices that it owned, and the pods that it was reserved for meanwhile.
	devices []Allocated
	pods    []string
}

// allocations of a claim, the first one first, in a history that ends at a time.
func (cl *claim) allocations(end time.Duration) []allocation {
	var all []allocation
	now := -1
	for _, e := range cl.seen {
		f := e.Fact.(Claim)
		if now >= 0 && !slices.Equal(f.owned(), all[now].names()) {
			all[now].to, now = e.At, -1
		}
		if f.State != ClaimAllocated {
			continue
		}
		if now < 0 {
			own := slices.DeleteFunc(slices.Clone(f.Devices), func(a Allocated) bool { return a.Admin })
			all, now = append(all, allocation{span: span{e.At, end}, claim: cl, began: e, devices: own}), len(all)
		}
		for _, uid := range f.Pods {
			if !slices.Contains(all[now].pods, uid) {
				all[now].pods = append(all[now].pods, uid)
			}
		}
	}
	return all
}

// names are those of the devices, as Claim.owned has them.
func (a *allocation) names() []string {
	var names []string
	for _, d := range a.devices {
		if !slices.Contains(names, d.Device) {
			names = append(names, d.Device)
		}
	}
	return names
}

// allocationsOf are those of all claims that have devices of their own.
func allocationsOf(c *checker) []allocation {
	var all []allocation
	for _, cl := range c.claims {
		for _, a := range cl.allocations(c.end) {
			if len(a.devices) > 0 {
				all = append(all, a)
			}
		}
	}
	return all
}

// collide reports whether two cannot have their devices at once.
func (u units) collide(a, b []Allocated) bool {
	both := map[string][2][]Allocated{}
	for i, devices := range [][]Allocated{a, b} {
		for _, d := range devices {
			of := both[u.unit(d.Device)]
			of[i] = append(of[i], d)
			both[u.unit(d.Device)] = of
		}
	}
	for _, unit := range slices.Sorted(maps.Keys(both)) {
		of := both[unit]
		if len(of[0]) > 0 && len(of[1]) > 0 && u.excess(unit, owners{{"a", of[0]}, {"b", of[1]}}) != "" {
			return true
		}
	}
	return false
}

// endOf is when the last of some pods is deleted or evicted; never if one is not.
func endOf(pods []*pod) (last time.Duration) {
	for _, p := range pods {
		last = max(last, p.endingAt())
	}
	return last
}
