// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strconv"
	"strings"
)

// Counter is a countable resource of a GPU that shapes consume. Two shapes that together need more than available exclude each
// other; the scheduler keeps the count (KEP-4815).
type Counter struct {
	Name  string
	Value int64
}

// engine is a kind of engine that partitions cannot share.
type engine struct {
	counter string
	of      func(*Profile) int
}

// engines in the order of their counters.
var engines = []engine{
	{"copy-engines", func(p *Profile) int { return p.CopyEngines }},
	{"decoders", func(p *Profile) int { return p.Decoders }},
	{"encoders", func(p *Profile) int { return p.Encoders }},
	{"jpeg-engines", func(p *Profile) int { return p.JPEGEngines }},
	{"ofa-engines", func(p *Profile) int { return p.OFAEngines }},
}

// Counters are those of the whole GPU, in a fixed order. They include only real constraints of the board, as every counter costs
// the scheduler time: one for each placement unit that is not always used together with another; one for each kind of engine, and
// for each profile's maximum of instances, that could otherwise be exceeded. A GPU that can only be allocated whole has a single
// one.
func (g *GPU) Counters() []Counter {
	if len(g.MIG.offered()) == 0 {
		return []Counter{{Name: "gpu", Value: 1}}
	}
	var counters []Counter
	for i := range g.MIG.Slices {
		if g.MIG.scarceUnit(i) {
			counters = append(counters, Counter{Name: sliceCounter(i), Value: 1})
		}
	}
	for _, e := range g.MIG.scarceEngines() {
		counters = append(counters, Counter{Name: e.counter, Value: int64(g.MIG.total(e))})
	}
	for _, p := range g.MIG.scarceProfiles() {
		counters = append(counters, Counter{Name: profileCounter(p), Value: int64(p.MaxInstances)})
	}
	return counters
}

// Consumes is a shape's consumption of its GPU's counters, without zeros.
func (s Shape) Consumes() []Counter { return s.ConsumesOf(s.GPU.Counters()) }

// ConsumesOf is Consumes with given counters of the GPU. They are expensive to compute: compute them once for many shapes.
func (s Shape) ConsumesOf(all []Counter) []Counter {
	if !s.IsPartition() {
		return all
	}
	var taken []Counter
	take := func(name string, n int64) {
		if n > 0 && slices.ContainsFunc(all, func(c Counter) bool { return c.Name == name }) {
			taken = append(taken, Counter{Name: name, Value: n})
		}
	}
	for i := range s.Placement.Size {
		take(sliceCounter(s.Placement.Start+i), 1)
	}
	for _, e := range engines {
		take(e.counter, int64(e.of(s.Profile)))
	}
	take(profileCounter(s.Profile), 1)
	take(CounterMemory, int64(min(s.Profile.Memory, maxAmount)))
	take(CounterMultiprocessors, int64(s.Profile.Multiprocessors))
	return taken
}

// IsSliceCounter reports whether a counter is that of a placement unit.
func IsSliceCounter(name string) bool { return strings.HasPrefix(name, slicePrefix) }

// IsEngineCounter reports whether a counter is that of a kind of engine.
func IsEngineCounter(name string) bool {
	return slices.ContainsFunc(engines, func(e engine) bool { return e.counter == name })
}

const slicePrefix = "slice-"

func sliceCounter(unit int) string     { return slicePrefix + strconv.Itoa(unit) }
func profileCounter(p *Profile) string { return "profile-" + strconv.Itoa(p.ID) }

// offered returns the profiles of the catalog: also those that only some policies offer, as their partitions may exist under any.
func (m *MIG) offered() []*Profile {
	var found []*Profile
	for i := range m.Profiles {
		if m.Profiles[i].InCatalog() {
			found = append(found, &m.Profiles[i])
		}
	}
	return found
}

// total is the board's number of engines of a kind: that of the profile with the most, which fills the board.
func (m *MIG) total(e engine) int {
	most := 0
	for i := range m.Profiles {
		most = max(most, e.of(&m.Profiles[i]))
	}
	return most
}

// scarceUnit reports whether a placement unit needs a counter: not if every placement that covers it also covers another one.
func (m *MIG) scarceUnit(unit int) bool {
	covers := func(p Placement, u int) bool { return p.Overlaps(Placement{Start: u, Size: 1}) }
	offered := m.offered()
	for other := range m.Slices {
		within, same := true, true
		for _, p := range offered {
			for _, at := range p.Placements {
				within = within && (!covers(at, unit) || covers(at, other))
				same = same && covers(at, unit) == covers(at, other)
			}
		}
		if other != unit && within && (!same || other < unit) {
			return false
		}
	}
	return true
}

// scarceEngines are the kinds that partitions which fit together can exceed, without those that run out only together with another
// kind.
func (m *MIG) scarceEngines() []engine {
	var scarce []engine
	for _, e := range engines {
		if m.most(e.of, none, 0) > m.total(e) {
			scarce = append(scarce, e)
		}
	}
	for _, e := range slices.Clone(scarce) {
		if slices.ContainsFunc(scarce, func(f engine) bool {
			return f.counter != e.counter && m.most(e.of, f.of, m.total(f)) <= m.total(e)
		}) {
			scarce = slices.DeleteFunc(scarce, func(f engine) bool { return f.counter == e.counter })
		}
	}
	return scarce
}

// scarceProfiles are those for which placement and engines allow more instances than the board does.
func (m *MIG) scarceProfiles() []*Profile {
	var scarce []*Profile
	for _, p := range m.offered() {
		fit := m.most(func(q *Profile) int {
			if q.ID == p.ID {
				return 1
			}
			return 0
		}, none, 0)
		for _, e := range m.scarceEngines() {
			if need := e.of(p); need > 0 {
				fit = min(fit, m.total(e)/need)
			}
		}
		if fit > p.MaxInstances {
			scarce = append(scarce, p)
		}
	}
	return scarce
}

// none is the zero weight.
func none(*Profile) int { return 0 }

// most is the greatest sum of a weight over partitions that do not overlap and together stay within a budget.
func (m *MIG) most(weight, spend func(*Profile) int, budget int) int {
	best := make([][]int, m.Slices+1) // best[i][b]: over units 0 to i-1, spending b at most
	best[0] = make([]int, budget+1)
	offered := m.offered()
	for end := 1; end <= m.Slices; end++ {
		best[end] = slices.Clone(best[end-1])
		for _, p := range offered {
			gain, cost := weight(p), spend(p)
			for _, at := range p.Placements {
				for b := cost; at.Start+at.Size == end && b <= budget; b++ {
					best[end][b] = max(best[end][b], best[at.Start][b-cost]+gain)
				}
			}
		}
	}
	return best[m.Slices][budget]
}
