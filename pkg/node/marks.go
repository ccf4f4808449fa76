// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"
	"time"
)

// Claims come and go in bursts, and so do partitions: what follows is observed once it has settled.
const (
	// allocationsSettle is how long allocations must not have changed, allocationsAtMost after what time they are observed
	// though they do: whole GPUs are ordered by what is free, and each new order is a write.
	allocationsSettle = 250 * time.Millisecond
	allocationsAtMost = 2 * time.Second
	// partitionsSettle is how long partitions must not have changed: the plugin's own changes cause events, too.
	partitionsSettle = time.Second
)

// marks are the aspects that are to be observed anew. The zero value has none.
type marks struct {
	mu sync.Mutex
	// now are those to be observed at once; the times are when to observe the others, zero for never.
	now                     Aspect
	allocations, partitions time.Time
	// since is when the first change of allocations came.
	since time.Time
}

// mark adds aspects.
func (m *marks) mark(a Aspect, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now |= a &^ (Allocations | Partitions)
	if a.Has(Partitions) {
		m.partitions = at.Add(partitionsSettle)
	}
	if !a.Has(Allocations) {
		return
	}
	if m.allocations.IsZero() {
		m.since = at
	}
	if m.allocations.IsZero() || at.Sub(m.since) < allocationsAtMost {
		m.allocations = at.Add(allocationsSettle)
	}
}

// take removes the aspects that are due and returns them.
func (m *marks) take(at time.Time) Aspect {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := m.now
	m.now = 0
	if !m.allocations.IsZero() && !at.Before(m.allocations) {
		due, m.allocations = due|Allocations, time.Time{}
	}
	if !m.partitions.IsZero() && !at.Before(m.partitions) {
		due, m.partitions = due|Partitions, time.Time{}
	}
	return due
}

// next is when the next aspect is due; zero for never.
func (m *marks) next() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return earliest(m.allocations, m.partitions)
}

// earliest is the earliest of some times that are not zero.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
