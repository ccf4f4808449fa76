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

// allocations of a claim, the first one first.
func (c *checker) allocations(cl *claim) []allocation {
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
			all, now = append(all, allocation{span: span{e.At, c.end}, claim: cl, began: e, devices: own}), len(all)
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

// allAllocations are those of all claims with devices of their own.
func (c *checker) allAllocations() []allocation {
	var all []allocation
	for _, cl := range c.claims {
		for _, a := range c.allocations(cl) {
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

// podsOf are the pods of a claim as far as they are known.
func (c *checker) podsOf(uids []string) (known []*pod, all bool) {
	for _, uid := range uids {
		if p := c.podByUID[uid]; p != nil {
			known = append(known, p)
		}
	}
	return known, len(known) == len(uids) && len(uids) > 0
}

// endOf is when the last of some pods is deleted or evicted; never if one is not.
func endOf(pods []*pod) (last time.Duration) {
	for _, p := range pods {
		last = max(last, p.endingAt())
	}
	return last
}
