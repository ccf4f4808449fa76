// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"slices"
	"strings"
	"time"
	"unicode"
)

// Kind is what a notice announces.
type Kind string

// The kinds.
const (
	// Reclaim: the provider takes the machine back, as it does with spot instances.
	Reclaim Kind = "reclaim"
	// Maintenance: the machine is stopped, restarted or moved.
	Maintenance Kind = "maintenance"
)

// Notice is what a source announces.
type Notice struct {
	// Source names the source, ID distinguishes its notices.
	Source, ID string
	Kind       Kind
	// At is when it happens; zero if the source does not say.
	At time.Time
	// Within is, where At is zero, the time from the notice that the provider promises at least; zero for none.
	Within time.Duration
	// Text is what the source says, in its words.
	Text string
}

// Bounds of what is taken from a source: everything that it says is input.
const (
	maxNotices = 16
	maxText    = 160
	// farthest is how far from now a time can be. AWS schedules maintenance weeks ahead.
	farthest = 366 * 24 * time.Hour
)

// bounded limits the notices of a source and their texts. The first are kept, in order of their IDs.
func bounded(all []Notice) []Notice {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Notice) int { return strings.Compare(a.ID, b.ID) })
	all = slices.CompactFunc(all, func(a, b Notice) bool { return a.ID == b.ID })
	all = all[:min(len(all), maxNotices)]
	for i := range all {
		all[i].ID, all[i].Text = clean(all[i].ID), clean(all[i].Text)
	}
	return all
}

// clean makes a text one short line.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > maxText {
		text = string(runes[:maxText-1]) + "…"
	}
	return text
}

// Standing is a notice that was not withdrawn.
type Standing struct {
	Notice
	// Since is when it was first seen, Seen when the source last said so.
	Since, Seen time.Time
}

// Deadline is when what is announced happens, at the earliest; zero if that is unknown.
func (s *Standing) Deadline() time.Time {
	if s.At.IsZero() && s.Within > 0 {
		return s.Since.Add(s.Within)
	}
	return s.At
}

// Answer is what a source says at one time.
type Answer struct {
	Source  string
	Notices []Notice
	// Err is why it says nothing, or not all.
	Err error
}

const (
	// settle is for how long a source must not repeat a notice until that is withdrawn: taints that come and go would let pods in
	// that are then evicted.
	settle = 30 * time.Second
	// silence is for how long a notice outlives the last word of a source that no longer answers, and its own time.
	silence = 10 * time.Minute
)

// Learn returns the notices that stand after an answer, in order of their sources and IDs. It is pure.
func Learn(standing []Standing, a Answer, now time.Time) []Standing {
	var next []Standing
	for _, n := range bounded(a.Notices) {
		s := Standing{Notice: n, Since: now, Seen: now}
		s.Source = a.Source
		if i := slices.IndexFunc(standing, func(was Standing) bool { return was.Source == a.Source && was.ID == n.ID }); i >= 0 {
			s.Since = standing[i].Since
			if s.At.IsZero() {
				s.At = standing[i].At // Azure names no time once the event has started
			}
		}
		next = append(next, s)
	}
	for _, was := range standing {
		repeated := slices.ContainsFunc(next, func(s Standing) bool { return s.Source == was.Source && s.ID == was.ID })
		if was.Source == a.Source && (repeated || over(&was, a.Err, now)) {
			continue
		}
		next = append(next, was)
	}
	slices.SortStableFunc(next, func(a, b Standing) int {
		return strings.Compare(a.Source+"\x00"+a.ID, b.Source+"\x00"+b.ID)
	})
	return next
}

// over reports whether a notice that its source has not repeated no longer stands.
func over(was *Standing, err error, now time.Time) bool {
	if err == nil {
		return now.Sub(was.Seen) >= settle
	}
	last := was.Seen
	if d := was.Deadline(); d.After(last) {
		last = d
	}
	return now.Sub(last) >= silence
}
