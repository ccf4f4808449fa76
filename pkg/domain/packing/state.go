// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"slices"
)

// Use is one allocation of a device. Amounts are its consumption of a shared device's capacities, in thousandths; nil stands for
// the defaults.
type Use struct {
	Device  int
	Amounts []int64
}

// State is the allocations of a node. It is not safe for concurrent use.
type State struct {
	model   *Model
	tainted Bits
	free    []int64   // by counter
	uses    []int     // by device
	amounts [][]int64 // by device, consumption of a shared one's capacities
	// overdrawn is how many counters of a pool are below zero. The allocator allocates no device that consumes counters from such a
	// pool (k8s.io/dynamic-resource-allocation/structured, checkAvailableCounters).
	overdrawn []int
	// turned is set if a pool has become overdrawn, or is no longer, and the values of its GPUs are out of date.
	turned  bool
	touched []int // by GPU, uses of its devices
	value   []int // by GPU, the sizes of its unused devices that fit, added up
	worth   int   // the values, added up
}

// NewState is a node without allocations. Tainted devices go only to requests that tolerate them.
func NewState(m *Model, tainted Bits) *State {
	s := &State{
		model: m, tainted: tainted, free: make([]int64, len(m.Counters)), uses: make([]int, len(m.Devices)),
		amounts: make([][]int64, len(m.Devices)), overdrawn: make([]int, m.pools), touched: make([]int, len(m.GPUs)),
		value: make([]int, len(m.GPUs)),
	}
	for i, c := range m.Counters {
		s.free[i] = c.Total
		if c.Total < 0 {
			s.overdrawn[c.Pool]++
		}
	}
	for i := range m.Devices {
		if m.Devices[i].Shared {
			s.amounts[i] = make([]int64, len(m.Devices[i].Capacities))
		}
	}
	for g := range m.GPUs {
		s.evaluate(g)
	}
	return s
}

// Model is the node's published devices.
func (s *State) Model() *Model { return s.model }

// Tainted reports whether a device has a taint that repels claims.
func (s *State) Tainted(device int) bool { return s.tainted.Has(device) }

// Touched reports whether a GPU has allocations.
func (s *State) Touched(gpu int) bool { return s.touched[gpu] > 0 }

// Uses is how many times a device is allocated.
func (s *State) Uses(device int) int { return s.uses[device] }

// Untouched is the number of GPUs without allocations.
func (s *State) Untouched() int {
	n := 0
	for _, t := range s.touched {
		if t == 0 {
			n++
		}
	}
	return n
}

// Whole reports whether all of a GPU can be allocated: it has no allocations, and its largest device fits.
func (s *State) Whole(gpu int) bool {
	if s.Touched(gpu) {
		return false
	}
	for _, i := range s.model.byGPU[gpu] {
		if s.model.Devices[i].Size == s.model.GPUs[gpu].Units && s.Fits(i) {
			return true
		}
	}
	return false
}

// Clone returns an independent copy.
func (s *State) Clone() *State {
	c := *s
	c.tainted, c.free, c.uses = slices.Clone(s.tainted), slices.Clone(s.free), slices.Clone(s.uses)
	c.overdrawn, c.touched, c.value = slices.Clone(s.overdrawn), slices.Clone(s.touched), slices.Clone(s.value)
	c.amounts = make([][]int64, len(s.amounts))
	for i, a := range s.amounts {
		c.amounts[i] = slices.Clone(a)
	}
	return &c
}

// Equal reports whether two states of one model have the same allocations, in any order.
func (s *State) Equal(o *State) bool {
	return s.model == o.model && slices.Equal(s.free, o.free) && slices.Equal(s.uses, o.uses) && slices.Equal(s.value, o.value) &&
		slices.Equal(s.tainted, o.tainted) && slices.EqualFunc(s.amounts, o.amounts, slices.Equal)
}

// Allocate records allocations. It never fails: allocations in the API server are facts, even if they exceed the devices.
func (s *State) Allocate(uses ...Use) {
	for _, u := range uses {
		s.change(u, 1)
	}
	s.evaluateAll(uses)
}

// TryAllocate records allocations if there is room for all of them, on devices that are tainted, too.
func (s *State) TryAllocate(uses ...Use) bool {
	for i, u := range uses {
		if !s.admits(u) {
			s.Release(uses[:i]...)
			return false
		}
		s.change(u, 1)
		s.evaluateAll(uses[i : i+1])
	}
	return true
}

// Release undoes Allocate.
func (s *State) Release(uses ...Use) {
	for _, u := range uses {
		s.change(u, -1)
	}
	s.evaluateAll(uses)
}

// change adds or removes one use.
func (s *State) change(u Use, by int) {
	d := &s.model.Devices[u.Device]
	before := s.uses[u.Device]
	s.uses[u.Device] += by
	s.touched[d.GPU] += by
	for i := range s.amounts[u.Device] {
		s.amounts[u.Device][i] += int64(by) * u.amount(d, i)
	}
	if before != 0 && s.uses[u.Device] != 0 {
		return // the counters of a device are charged once
	}
	for _, n := range d.Needs {
		was := s.free[n.Counter]
		s.free[n.Counter] -= int64(by) * n.Amount
		switch pool := s.model.Counters[n.Counter].Pool; {
		case was >= 0 && s.free[n.Counter] < 0:
			s.overdrawn[pool]++
			s.turned = s.turned || s.overdrawn[pool] == 1
		case was < 0 && s.free[n.Counter] >= 0:
			s.overdrawn[pool]--
			s.turned = s.turned || s.overdrawn[pool] == 0
		}
	}
}

func (u *Use) amount(d *Device, capacity int) int64 {
	if u.Amounts == nil {
		return d.Capacities[capacity].Default
	}
	return u.Amounts[capacity]
}

// Fits reports whether a device can be allocated once more, by a claim that tolerates no taints and consumes the defaults.
func (s *State) Fits(device int) bool { return !s.tainted.Has(device) && s.admits(Use{Device: device}) }

// admits reports whether the remaining counters and capacities suffice, by the allocator's rules.
func (s *State) admits(u Use) bool {
	d := &s.model.Devices[u.Device]
	if s.uses[u.Device] > 0 && !d.Shared {
		return false
	}
	for i := range s.amounts[u.Device] {
		if s.amounts[u.Device][i]+u.amount(d, i) > d.Capacities[i].Total {
			return false
		}
	}
	if s.uses[u.Device] > 0 || len(d.Needs) == 0 {
		return true
	}
	if s.overdrawn[d.Pool] > 0 {
		return false
	}
	for _, n := range d.Needs {
		if s.free[n.Counter] < n.Amount {
			return false
		}
	}
	return true
}

// evaluateAll updates the values of GPUs whose devices changed.
func (s *State) evaluateAll(uses []Use) {
	if s.turned {
		s.turned = false
		for g := range s.model.GPUs {
			s.evaluate(g)
		}
		return
	}
	last := -1
	for _, u := range uses {
		for _, g := range s.model.affected[u.Device] {
			if g != last || len(s.model.affected[u.Device]) > 1 {
				s.evaluate(g)
			}
			last = g
		}
	}
}

func (s *State) evaluate(gpu int) {
	value := 0
	for _, i := range s.model.byGPU[gpu] {
		// A device in use is lost for other purposes, so its remaining shares count nothing.
		if s.uses[i] == 0 && s.Fits(i) {
			value += s.model.Devices[i].Size
		}
	}
	s.worth += value - s.value[gpu]
	s.value[gpu] = value
}
