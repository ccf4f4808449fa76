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

// Figures are what was seen.
type Figures struct {
	Memory, Activity map[Key][]Point
	// Warnings are what Prometheus has to say about its answers.
	Warnings []string
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
	return &Figure{P50: at(0.5), P95: at(0.95), Max: values[len(values)-1]}
}

// seen is for how long there are points, if those of one time count once.
func seen(points []Point, step time.Duration) time.Duration {
	times := map[time.Time]bool{}
	for _, p := range points {
		times[p.At.UTC()] = true
	}
	return time.Duration(len(times)) * step
}
