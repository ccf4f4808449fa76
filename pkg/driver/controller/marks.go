// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"sync"
	"time"
)

// Claims come and go in bursts, and so do partitions: they are observed once they have settled.
const (
	// allocationsSettle is how long allocations must be unchanged, allocationsAtMost the longest wait for that: whole GPUs are
	// ordered by free capacity, and each new order is a write.
	allocationsSettle = 250 * time.Millisecond
	allocationsAtMost = 2 * time.Second
	// partitionsSettle is how long partitions must be unchanged: the plugin's own changes also cause events. partitionsAtMost is
	// the longest wait for that.
	partitionsSettle = time.Second
	partitionsAtMost = 5 * time.Second
)

// marks are the stale aspects. The zero value has none.
type marks struct {
	mu sync.Mutex
	// now are the aspects to observe immediately.
	now                     Aspect
	allocations, partitions settling
}

// settling is an aspect that is observed once it has settled: at due, zero for never. since is the time of its first change.
type settling struct{ due, since time.Time }

// mark notes a change, which delays due by quiet, but to no later than atMost after the first change.
func (s *settling) mark(at time.Time, quiet, atMost time.Duration) {
	if s.due.IsZero() {
		s.since = at
	}
	if s.due.IsZero() || at.Sub(s.since) < atMost {
		s.due = at.Add(quiet)
	}
}

// take reports whether the aspect is due, and resets it if so.
func (s *settling) take(at time.Time) bool {
	due := !s.due.IsZero() && !at.Before(s.due)
	if due {
		s.due = time.Time{}
	}
	return due
}

// mark adds aspects.
func (m *marks) mark(a Aspect, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now |= a &^ (Allocations | Partitions)
	if a.Has(Allocations) {
		m.allocations.mark(at, allocationsSettle, allocationsAtMost)
	}
	if a.Has(Partitions) {
		m.partitions.mark(at, partitionsSettle, partitionsAtMost)
	}
}

// take removes the aspects that are due and returns them.
func (m *marks) take(at time.Time) Aspect {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := m.now
	m.now = 0
	if m.allocations.take(at) {
		due |= Allocations
	}
	if m.partitions.take(at) {
		due |= Partitions
	}
	return due
}

// next is when the next aspect is due; zero for never.
func (m *marks) next() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return earliest(m.allocations.due, m.partitions.due)
}

// earliest returns the earliest non-zero time.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
