// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// ID identifies a pool.
type ID struct{ Driver, Pool string }

// Pool is the newest generation of a pool.
type Pool struct {
	ID
	Generation int64
	// Slices are those that a node reaches, in the order of the allocator: by name.
	Slices []*resourceapi.ResourceSlice
	// Rest are those that it does not reach, where the others are not the whole pool: the allocator looks for them only then. Their
	// counters are of the pool, too.
	Rest []*resourceapi.ResourceSlice
	// Want is how many slices the pool has by its own account (ResourceSliceCount).
	Want int64
	// Invalid is why the allocator uses no device of the pool though it is whole; empty where it does.
	Invalid string
}

// Gather are the pools of slices that a node reaches, in the order in which the allocator tries them: by driver and name, those with
// binding conditions last. rest are slices of whatever pools that it does not reach. A pool that is not whole by what is reached, and of
// which rest has a newer generation, is left out: it is being replaced. The slices are not changed.
func Gather(reached, rest []*resourceapi.ResourceSlice) []*Pool {
	byID := map[ID]*Pool{}
	var found []*Pool
	for _, s := range reached {
		if usesGroups(s) {
			continue
		}
		id := ID{s.Spec.Driver, s.Spec.Pool.Name}
		p := byID[id]
		if p == nil {
			p = &Pool{ID: id, Generation: s.Spec.Pool.Generation}
			byID[id] = p
			found = append(found, p)
		}
		switch generation := s.Spec.Pool.Generation; {
		case generation < p.Generation:
			continue
		case generation > p.Generation:
			p.Generation, p.Slices = generation, nil
		}
		p.Slices = append(p.Slices, s)
	}
	for _, p := range found {
		slices.SortFunc(p.Slices, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
		p.Want = p.Slices[0].Spec.Pool.ResourceSliceCount
	}
	found = slices.DeleteFunc(found, func(p *Pool) bool { return p.IsIncomplete() && !p.complete(rest) })
	for _, p := range found {
		if !p.IsIncomplete() {
			p.Invalid = p.check()
		}
	}
	slices.SortFunc(found, func(a, b *Pool) int {
		return cmp.Or(cmp.Compare(a.waits(), b.waits()), cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Pool, b.Pool))
	})
	return found
}

// complete looks for the slices of the pool that the node does not reach. It reports false where there is a newer generation.
func (p *Pool) complete(rest []*resourceapi.ResourceSlice) bool {
	for _, s := range rest {
		switch {
		case s.Spec.Driver != p.Driver || s.Spec.Pool.Name != p.Pool || s.Spec.Pool.Generation < p.Generation:
		case s.Spec.Pool.Generation > p.Generation:
			return false
		case !usesGroups(s):
			p.Rest = append(p.Rest, s)
		}
	}
	return true
}

// usesGroups reports whether devices of a slice consume counters by compatibility groups. The allocator passes over such slices,
// and so their pool is incomplete for it: the feature gate DRADeviceCompatibilityGroups is off by default.
func usesGroups(s *resourceapi.ResourceSlice) bool {
	return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool {
		return slices.ContainsFunc(d.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool {
			return len(c.CompatibilityGroups) > 0
		})
	})
}

// Have is how many slices of the pool there are.
func (p *Pool) Have() int64 { return int64(len(p.Slices) + len(p.Rest)) }

// IsIncomplete reports whether the pool has not as many slices as it says, more or fewer: the allocator uses none of its devices.
func (p *Pool) IsIncomplete() bool { return p.Have() != p.Want }

// IsUsable reports whether the allocator uses devices of the pool.
func (p *Pool) IsUsable() bool { return !p.IsIncomplete() && p.Invalid == "" }

// Devices are those that the allocator sees, in its order, with their slices. Of slices with counters it sees none: since
// Kubernetes 1.35 a slice has one or the other.
func (p *Pool) Devices() iter.Seq2[*resourceapi.ResourceSlice, *resourceapi.Device] {
	return devicesOf(p.Slices)
}

func devicesOf(all []*resourceapi.ResourceSlice) iter.Seq2[*resourceapi.ResourceSlice, *resourceapi.Device] {
	return func(yield func(*resourceapi.ResourceSlice, *resourceapi.Device) bool) {
		for _, s := range all {
			if len(s.Spec.SharedCounters) > 0 {
				continue
			}
			for i := range s.Spec.Devices {
				if !yield(s, &s.Spec.Devices[i]) {
					return
				}
			}
		}
	}
}

// CounterSets are those of the pool, in order of names.
func (p *Pool) CounterSets() []resourceapi.CounterSet {
	var sets []resourceapi.CounterSet
	for _, s := range slices.Concat(p.Slices, p.Rest) {
		sets = append(sets, s.Spec.SharedCounters...)
	}
	slices.SortStableFunc(sets, func(a, b resourceapi.CounterSet) int { return cmp.Compare(a.Name, b.Name) })
	return sets
}

// waits is 1 for a pool with binding conditions, which is tried last.
func (p *Pool) waits() int {
	for _, d := range p.Devices() {
		if d.BindingConditions != nil {
			return 1
		}
	}
	return 0
}

// check finds what is wrong with a whole pool: device names and counter sets are there once, and devices consume counters that
// exist.
func (p *Pool) check() string {
	names := map[string]bool{}
	for _, d := range p.Devices() {
		if names[d.Name] {
			return fmt.Sprintf("device %s is published twice", d.Name)
		}
		names[d.Name] = true
	}
	sets := map[string]map[string]resourceapi.Counter{}
	for _, set := range p.CounterSets() {
		if _, twice := sets[set.Name]; twice {
			return fmt.Sprintf("counter set %s is published twice", set.Name)
		}
		sets[set.Name] = set.Counters
	}
	for _, all := range [][]*resourceapi.ResourceSlice{p.Slices, p.Rest} {
		for _, d := range devicesOf(all) {
			for _, c := range d.ConsumesCounters {
				set, ok := sets[c.CounterSet]
				if !ok {
					return fmt.Sprintf("device %s consumes counters of %s, which is not published", d.Name, c.CounterSet)
				}
				for name := range c.Counters {
					if _, ok := set[name]; !ok {
						return fmt.Sprintf("device %s consumes counters of %s that it does not have", d.Name, c.CounterSet)
					}
				}
			}
		}
	}
	return ""
}
