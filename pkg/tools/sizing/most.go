// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"time"
)

// Most is the most that a plugin has seen of a claim's device.
type Most struct {
	// Since is the first look, Looked the time from then.
	Since  time.Time
	Looked time.Duration
	// Memory and Activity are nil if they never were known, and were known for so long. In the rest of the time they may have been more.
	Memory, Activity       *float64
	MemoryFor, ActivityFor time.Duration
}

// most is what plugins have seen.
func (f *Figures) most(group []*holding) sight {
	s := sight{activityOfAll: true}
	longest := time.Duration(0)
	for _, h := range group {
		for _, key := range h.keys() {
			m := mostOf(f.Most[key], h.claim.CreationTimestamp.Time)
			if s.memory, s.activity = s.memory.with(m.Memory), s.activity.with(m.Activity); m.Memory == nil {
				s.without++
			}
			s.activityOfAll = s.activityOfAll && m.Activity != nil
			s.memoryFor, s.activityFor = max(s.memoryFor, m.MemoryFor), max(s.activityFor, m.ActivityFor)
			for _, f := range []struct {
				name  string
				most  *float64
				known time.Duration
			}{{"memory", m.Memory, m.MemoryFor}, {"activity", m.Activity, m.ActivityFor}} {
				if lacks := m.Looked - f.known; f.most != nil && lacks > max(longest, m.Looked/10) {
					longest = lacks
					s.hole = fmt.Sprintf("the %s of claim %s was known in %.1f of %.1f hours", f.name, h.claim.Name, f.known.Hours(), m.Looked.Hours())
				}
			}
		}
	}
	if s.activity != nil {
		s.busiest = s.activity.Max
	}
	return s
}

// mostOf is the most of a claim, without what an earlier one of its name has used. During an update a node has two plugins.
func mostOf(all []Most, created time.Time) Most {
	var m Most
	for i := range all {
		if one := &all[i]; !one.Since.Before(created) {
			m.Memory, m.MemoryFor = larger(m.Memory, one.Memory), max(m.MemoryFor, one.MemoryFor)
			m.Activity, m.ActivityFor = larger(m.Activity, one.Activity), max(m.ActivityFor, one.ActivityFor)
			m.Looked = max(m.Looked, one.Looked)
		}
	}
	return m
}

func larger(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// with is a figure that is at least as much; nil for none.
func (f *Figure) with(most *float64) *Figure {
	switch {
	case most == nil:
		return f
	case f == nil:
		return &Figure{Max: *most}
	}
	return &Figure{Max: max(f.Max, *most)}
}
