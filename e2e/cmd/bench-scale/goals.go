// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
)

// goalNodes is from how many nodes on the goals hold: with fewer, a scheduler that looks at all of them has less to do.
const goalNodes = 1000

// goal bounds a number of the last scheduler, or its ratio to that of the first.
type goal struct {
	// Bound is the greatest value, or the least one.
	Bound float64 `json:"bound"`
	Least bool    `json:"least,omitempty"`
	Ratio bool    `json:"ratio,omitempty"`
}

func (g goal) String() string {
	sign, unit := "<=", ""
	if g.Least {
		sign = ">="
	}
	if g.Ratio {
		unit = " x"
	}
	return fmt.Sprintf("%s %g%s", sign, g.Bound, unit)
}

func (g goal) met(value float64) bool {
	if g.Least {
		return value >= g.Bound
	}
	return value <= g.Bound
}

// Goals that do not depend on the kind of pods. What the API server has of a node is two copies of its slices; with eight attributes
// a partition instead of ten it would be 1.9 MB (docs/decisions/partition-attributes.md).
var fixedGoals = map[string]goal{
	apiServerHeap:   {Bound: 2.6},
	schedulerMemory: {Bound: 2},
}

// setGoals gives the numbers that were measured their goals.
func (r *report) setGoals(o options) {
	if o.nodes < goalNodes {
		return
	}
	for name, g := range fixedGoals {
		r.want(name, g)
	}
	r.want(fmt.Sprintf(rejected, o.mixedPods, o.mixedNodes, mixedLoad), goal{Bound: 0.6, Ratio: true})
	if o.urgent {
		n := urgentEach * len(urgentKinds)
		r.want(fmt.Sprintf(nominatedSeconds, n), goal{Bound: 1})
		r.want(fmt.Sprintf(victimsTwice, n), goal{})
		r.want(fmt.Sprintf(ordinaryRate, o.pods, n), goal{Bound: 0.8, Least: true})
	}
	for _, k := range o.kinds {
		times := goal{Bound: 10, Least: true, Ratio: true}
		r.want(fmt.Sprintf(podRateLoaded, o.pods, k.name, o.allocated), times)
		if k.class == whole {
			times.Bound = 8
		}
		r.want(fmt.Sprintf(podRate, o.pods, k.name), times)
		if least := r.find(fmt.Sprintf(fewestGPUs, o.landing, k.name)); least != nil {
			r.want(fmt.Sprintf(landedGPUs, o.landing, k.name), goal{Bound: least.Values[""]})
		}
	}
}

// want gives a number a goal, where it was measured.
func (r *report) want(name string, g goal) {
	if n := r.find(name); n != nil {
		n.Goal = &g
	}
}

// missed are the numbers that miss their goals, each with what it is.
func (r *report) missed() []string {
	var all []string
	for _, n := range r.Numbers {
		if value, ok := r.compared(n); ok && !n.Goal.met(value) {
			all = append(all, fmt.Sprintf("%s: %.2f, want %s", n.Name, value, n.Goal))
		}
	}
	return all
}

// compared is what the goal of a number bounds; not ok where it has none, or where there is nothing to compare.
func (r *report) compared(n number) (value float64, ok bool) {
	if n.Goal == nil {
		return 0, false
	}
	if n.Goal.Ratio {
		return r.comparedRatio(n)
	}
	if value, ok = n.Values[""]; ok {
		return value, true
	}
	value, ok = n.Values[r.Schedulers[len(r.Schedulers)-1]]
	return value, ok
}

// comparedRatio is the ratio of a number. Where the first scheduler has 0, as of what it rejects, anything is more.
func (r *report) comparedRatio(n number) (ratio float64, ok bool) {
	if ratio, ok = r.ratio(n); ok {
		return ratio, ok
	}
	first, ok := n.Values[r.Schedulers[0]]
	last, also := n.Values[r.Schedulers[len(r.Schedulers)-1]]
	switch {
	case !ok || !also || first != 0 || len(r.Schedulers) < 2:
		return 0, false
	case last > 0:
		return math.Inf(1), true
	default:
		return 0, !n.Goal.Least
	}
}
