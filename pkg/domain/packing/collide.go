// SPDX-License-Identifier: Apache-2.0

package packing

import "slices"

// Exceeded reports whether more is allocated than there is: a device twice, or more of counters or capacities than they have.
func Exceeded(s *State) bool {
	for i := range s.model.Devices {
		d := &s.model.Devices[i]
		if s.uses[i] > 1 && !d.Shared {
			return true
		}
		for j, amount := range s.amounts[i] {
			if amount > d.Capacities[j].Total {
				return true
			}
		}
	}
	return slices.ContainsFunc(s.overdrawn, func(n int) bool { return n > 0 })
}

// Collide reports whether allocations, one after the other, lack what others have in a state: the device, its capacities or its counters.
// What nobody has does not count, such as counters that are too few for the device alone, nor what pools lack elsewhere.
func Collide(s *State, uses []Use) (collide bool) {
	for i, u := range uses {
		if collide = lacks(s, u); collide {
			uses = uses[:i]
			break
		}
		s.change(u, 1)
	}
	for _, u := range uses {
		s.change(u, -1)
	}
	return collide
}

func lacks(s *State, u Use) bool {
	d := &s.model.Devices[u.Device]
	if s.uses[u.Device] > 0 && !d.Shared {
		return true
	}
	for i, has := range s.amounts[u.Device] {
		if has > 0 && has+u.amount(d, i) > d.Capacities[i].Total {
			return true
		}
	}
	return s.uses[u.Device] == 0 && slices.ContainsFunc(d.Needs, func(n Need) bool {
		return s.free[n.Counter] < n.Amount && s.free[n.Counter] < s.model.Counters[n.Counter].Total
	})
}
