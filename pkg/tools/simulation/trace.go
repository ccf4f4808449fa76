// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// arrival is a pod that asks for a place, and leaves at a time if it gets one.
type arrival struct {
	at, until time.Duration
	kind      int
}

// arrivals are those of a workload in order of time. At time zero as many arrive as run on average; lifetimes have no memory,
// so what is left of theirs is distributed as any lifetime is. The same seed gives the same arrivals, and those of one kind
// do not depend on the others.
func arrivals(w *Workload, seed uint64) []arrival {
	var all []arrival
	for i := range w.Pods {
		p := &w.Pods[i]
		random := newRandom(seed, i)
		mean := float64(p.Lifetime.Duration)
		add := func(at float64) {
			all = append(all, arrival{at: timeOf(at), until: timeOf(at + random.ExpFloat64()*mean), kind: i})
		}
		for range p.Running {
			add(0)
		}
		between := mean / float64(p.Running)
		for at := random.ExpFloat64() * between; at < float64(w.Duration.Duration); at += random.ExpFloat64() * between {
			add(at)
		}
	}
	// Those of time zero come in any order, not kind by kind.
	random := newRandom(seed, len(w.Pods))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return all
}

// timeOf is a time in nanoseconds, or the last one that there is: a conversion of later ones differs by architecture.
func timeOf(nanoseconds float64) time.Duration {
	if nanoseconds >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(nanoseconds)
}

// newRandom is one of the sequences of a seed.
func newRandom(seed uint64, sequence int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(sequence))) //nolint:gosec // a simulation is to be repeatable, not secret
}
