// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"
	"time"
)

func TestMarks(t *testing.T) {
	const between = 10 * time.Millisecond
	at := start.Add
	for _, kind := range []struct {
		aspect        Aspect
		quiet, atMost time.Duration
	}{{Allocations, allocationsSettle, allocationsAtMost}, {Partitions, partitionsSettle, partitionsAtMost}} {
		for changes, want := range map[int]time.Duration{
			1:    kind.quiet,
			10:   9*between + kind.quiet,
			1000: kind.atMost - between + kind.quiet, // it never settles
		} {
			t.Run(fmt.Sprintf("aspect %b changes %d times", kind.aspect, changes), func(t *testing.T) {
				var m marks
				for i := range changes {
					now := at(time.Duration(i) * between)
					if m.take(now).Has(kind.aspect) {
						if took := now.Sub(start); took != want {
							t.Errorf("observed after %s, want %s", took, want)
						}
						return
					}
					m.mark(kind.aspect, now)
				}
				if took := m.next().Sub(start); took != want || m.take(m.next().Add(-1)) != 0 || m.take(m.next()) != kind.aspect {
					t.Errorf("observed after %s, want %s", took, want)
				}
			})
		}
	}
	var m marks
	m.mark(Partitions|Health, at(0))
	m.mark(Partitions, at(partitionsSettle/2))
	if got := m.take(at(partitionsSettle)); got != Health {
		t.Errorf("got %b, want health alone, as partitions have not settled", got)
	}
	if got := m.take(at(partitionsSettle * 3 / 2)); got != Partitions || !m.next().IsZero() {
		t.Errorf("got %b, want partitions, and nothing after", got)
	}
}
