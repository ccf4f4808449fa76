// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// CounterID identifies a counter of a node.
type CounterID struct{ Pool, Set, Name string }

// Stock is an amount of each counter.
type Stock map[CounterID]int64

// Stock is what the pool has of its counters with nothing allocated.
func (p *Pool) Stock() Stock {
	s := Stock{}
	for _, set := range p.CounterSets() {
		for name, c := range set.Counters {
			s[CounterID{p.Pool, set.Name, name}] = c.Value.Value()
		}
	}
	return s
}

// Needs are the counters that a device of a pool consumes.
func Needs(pool string, d *resourceapi.Device) Stock {
	needs := Stock{}
	for _, c := range d.ConsumesCounters {
		for name, counter := range c.Counters {
			needs[CounterID{pool, c.CounterSet, name}] += counter.Value.Value()
		}
	}
	return needs
}

// Fits reports whether the stock covers all needs.
func (s Stock) Fits(needs Stock) bool {
	for id, n := range needs {
		if s[id] < n {
			return false
		}
	}
	return true
}

// Take subtracts needs, whether they fit or not.
func (s Stock) Take(needs Stock) {
	for id, n := range needs {
		s[id] -= n
	}
}

// WithoutCounters are slices whose devices consume no counters, for requests that take none (kubernetes/kubernetes#140729). Those that
// differ are copies.
func WithoutCounters(all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	shown := slices.Clone(all)
	for i, s := range all {
		if !slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return len(d.ConsumesCounters) > 0 }) {
			continue
		}
		changed := *s
		changed.Spec.Devices = slices.Clone(s.Spec.Devices)
		for j := range changed.Spec.Devices {
			changed.Spec.Devices[j].ConsumesCounters = nil
		}
		shown[i] = &changed
	}
	return shown
}
