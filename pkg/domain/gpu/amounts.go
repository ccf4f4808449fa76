// SPDX-License-Identifier: Apache-2.0

package gpu

import "math"

// maxAmount bounds the memory of a profile, so that sums of it do not overflow.
const maxAmount = 1 << 53

// Counters of amounts, which quotas charge. They do not constrain allocation.
const (
	CounterMemory          = "memory"
	CounterMultiprocessors = "multiprocessors"
)

// AmountCounters are counters of the whole GPU's amounts, in a fixed order; unknown ones are left out. They cover any partitions
// that fit together: the driver rounds their memory, so its sum may exceed the GPU's.
func (g *GPU) AmountCounters() []Counter {
	memory := g.MIG.most(func(p *Profile) int { return int(min(p.Memory, maxAmount)) }, none, 0)
	if g.Memory != nil && *g.Memory <= math.MaxInt64 {
		memory = max(memory, int(*g.Memory))
	}
	processors := g.MIG.most(func(p *Profile) int { return p.Multiprocessors }, none, 0)
	var counters []Counter
	for _, c := range []Counter{{CounterMemory, int64(memory)}, {CounterMultiprocessors, int64(processors)}} {
		if c.Value > 0 {
			counters = append(counters, c)
		}
	}
	return counters
}

// Coexist reports whether shapes of one GPU can all be allocated at once, so that no counters are needed. all are the GPU's
// counters.
func Coexist(shapes []Shape, all []Counter) bool {
	left := map[string]int64{}
	for _, c := range all {
		left[c.Name] = c.Value
	}
	for _, s := range shapes {
		for _, c := range s.ConsumesOf(all) {
			if left[c.Name] -= c.Value; left[c.Name] < 0 {
				return false
			}
		}
	}
	return true
}
