// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
	"time"
)

// Event is something that happened.
type Event struct {
	// At is when, since the recorder's start.
	At time.Duration
	// Wall is when by the wall clock, for people: it may jump.
	Wall time.Time
	Fact Fact
}

// Fact is what happened: one of the types of this package that have a Kind.
type Fact interface {
	Kind() Kind
}

// Kind names the type of a fact in a file.
type Kind string

// The kinds of facts.
const (
	KindStart     Kind = "start"
	KindCounters  Kind = "counters"
	KindDevice    Kind = "device"
	KindWithdrawn Kind = "device-withdrawn"
	KindClaim     Kind = "claim"
	KindCall      Kind = "call"
	KindReturn    Kind = "return"
	KindHardware  Kind = "hardware"
	KindContainer Kind = "container"
	KindPod       Kind = "pod"
	KindFault     Kind = "fault"
	KindGap       Kind = "gap"
	// KindScheduling is what happens to pods from schedulers' point of view.
	KindScheduling Kind = "scheduling"
)

// History is what a recorder saw, in the order of time.
type History struct {
	Events []Event
}

// New makes a history of events in any order.
func New(events ...Event) History {
	h := History{Events: slices.Clone(events)}
	slices.SortStableFunc(h.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return h
}

// End is the time of the last event.
func (h History) End() time.Duration {
	if len(h.Events) == 0 {
		return 0
	}
	return h.Events[len(h.Events)-1].At
}
