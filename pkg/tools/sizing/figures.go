// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"math"
	"slices"
	"time"
)

// Key is a device of a claim.
type Key struct{ Namespace, Claim, Device string }

// Point is a figure at a time.
type Point struct {
	At    time.Time
	Value float64
}

// Figures are what was seen: by Prometheus over time, or the most by plugins.
type Figures struct {
	Memory, Activity map[Key][]Point
	// Most is nil if Prometheus was asked. The claims of a key may be several that had the name one after the other.
	Most map[Key][]Most
	// Warnings are what the answers lack.
	Warnings []string
}

// source is whose figures these are.
func (f *Figures) source() Source {
	if f.Most != nil {
		return FromPlugins
	}
	return FromPrometheus
}

// sight is what was seen of a workload.
type sight struct {
	memory, activity       *Figure
	memoryFor, activityFor time.Duration
	// without are the claims whose memory was never known.
	without int
	// activityOfAll: the activity of each claim was known at some time. busiest is that of the busiest one: the figures of many idle
	// claims would hide it.
	activityOfAll bool
	busiest       float64
	// hole is about the figure of a claim that was unknown for longest while its plugin looked; empty if that is a tenth at most.
	hole string
}

// of is what was seen of a workload's claims.
func (f *Figures) of(group []*holding, step time.Duration) sight {
	if f.Most != nil {
		return f.most(group)
	}
	s := sight{activityOfAll: true}
	var memory, activity []Point
	for _, h := range group {
		for _, key := range h.keys() {
			m, a := after(f.Memory[key], h.claim.CreationTimestamp.Time), after(f.Activity[key], h.claim.CreationTimestamp.Time)
			if memory, activity = append(memory, m...), append(activity, a...); len(m) == 0 {
				s.without++
			}
			if of := figure(a); of != nil {
				s.busiest = max(s.busiest, *of.P95)
			}
			s.activityOfAll = s.activityOfAll && len(a) > 0
		}
	}
	s.memory, s.memoryFor = figure(memory), seen(memory, step)
	s.activity, s.activityFor = figure(activity), seen(activity, step)
	return s
}

// after leaves out what an earlier claim of the name has used, and what is no number.
func after(points []Point, created time.Time) []Point {
	return slices.DeleteFunc(slices.Clone(points), func(p Point) bool {
		return p.At.Before(created) || math.IsNaN(p.Value) || math.IsInf(p.Value, 0) || p.Value < 0
	})
}

// figure is how the values of points are distributed; nil if there are none.
func figure(points []Point) *Figure {
	if len(points) == 0 {
		return nil
	}
	values := make([]float64, 0, len(points))
	for _, p := range points {
		values = append(values, p.Value)
	}
	slices.Sort(values)
	// The least value that a part of all values does not exceed.
	at := func(part float64) float64 { return values[max(0, int(math.Ceil(part*float64(len(values))))-1)] }
	return &Figure{P50: new(at(0.5)), P95: new(at(0.95)), Max: values[len(values)-1]}
}

// seen is for how long there are points, if those of one time count once.
func seen(points []Point, step time.Duration) time.Duration {
	times := map[time.Time]bool{}
	for _, p := range points {
		times[p.At.UTC()] = true
	}
	return time.Duration(len(times)) * step
}
