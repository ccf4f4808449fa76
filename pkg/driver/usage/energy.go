// SPDX-License-Identifier: Apache-2.0

package usage

import "time"

// mostWatts is more than a board can draw. A greater rise of the counter is one of another load of the driver.
const mostWatts = 5000

// shortest is the shortest interval whose mean power is trusted: the driver updates the counter every 20 to 100 ms.
const shortest = time.Second

// portion is a claim's part of a GPU, and the SM activity that it causes there.
type portion struct {
	part, activity float64
}

// apportion divides the energy of a GPU: idle by parts, the rest by activity, that of nobody included. The sum of the result is at
// most joules. Without any activity, all of it is idle.
func apportion(joules, idle, other float64, claims []portion) []float64 {
	parts, activity := 0.0, other
	for _, c := range claims {
		parts += c.part
		activity += c.activity
	}
	parts = max(parts, 1) // the profiles of a board may overlap in rounding
	idle = min(idle, joules)
	if activity == 0 {
		idle = joules
	}
	result := make([]float64, 0, len(claims))
	for _, c := range claims {
		part := idle * c.part / parts
		if activity > 0 {
			part += (joules - idle) * c.activity / activity
		}
		result = append(result, part)
	}
	return result
}

// consumed is the energy in joules between two readings of the counter in millijoules; false if it cannot be known.
func consumed(before, now *uint64, took time.Duration) (joules float64, ok bool) {
	if before == nil || now == nil || *now < *before || took < shortest {
		return 0, false
	}
	joules = float64(*now-*before) / 1000
	return joules, joules <= mostWatts*took.Seconds()
}
