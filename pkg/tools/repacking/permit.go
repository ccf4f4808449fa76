// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Permit is when pods may be evicted, and how many. The zero value permits all.
type Permit struct {
	// Windows are when; always if there are none.
	Windows []Window
	// Zone is where the windows' clock hangs.
	Zone *time.Location
	// PerHour is how many pods may be evicted in any hour; 0 for any number.
	PerHour int
}

// Refuses says why pods may not be evicted now, after so many in the last hour. It is empty if they may.
func (p *Permit) Refuses(now time.Time, lastHour, pods int) string {
	if len(p.Windows) > 0 && !slices.ContainsFunc(p.Windows, func(w Window) bool { return w.Open(now.In(p.Zone)) }) {
		return "no window is open"
	}
	if p.PerHour > 0 && lastHour+pods > p.PerHour {
		return fmt.Sprintf("%d pods were evicted in the last hour, of %d that may be, and this step has %d", lastHour, p.PerHour, pods)
	}
	return ""
}

// Window is a time of the week: on some days, by name, from a minute of the day to another, which is on the next day if it is not later.
type Window struct {
	days     [7]bool // by time.Weekday
	from, to int
}

var errWindow = errors.New(`a window is days and hours, such as "Sat,Sun 00:00-24:00" or "Mon-Fri 22:00-06:00"`)

const day = 24 * 60

// ParseWindow reads a window such as "Mon-Fri 22:00-06:00". Without days it is open on all.
func ParseWindow(text string) (Window, error) {
	var w Window
	fields := strings.Fields(text)
	if len(fields) == 1 {
		fields = []string{"Sun-Sat", fields[0]}
	}
	if len(fields) != 2 {
		return w, fmt.Errorf("window %q: %w", text, errWindow)
	}
	for part := range strings.SplitSeq(fields[0], ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, to := weekday(first), weekday(last)
		if from < 0 || to < 0 {
			return w, fmt.Errorf("window %q: days are Mon to Sun: %w", text, errWindow)
		}
		for d := from; ; d = (d + 1) % 7 {
			if w.days[d] = true; d == to {
				break
			}
		}
	}
	from, to, isRange := strings.Cut(fields[1], "-")
	w.from, w.to = minute(from), minute(to)
	if !isRange || w.from < 0 || w.to < 0 || w.from == day || w.from == w.to {
		return w, fmt.Errorf("window %q: hours are 00:00 to 24:00: %w", text, errWindow)
	}
	return w, nil
}

// weekday is the number of a day, or -1.
func weekday(name string) int {
	return slices.IndexFunc([]time.Weekday{0, 1, 2, 3, 4, 5, 6}, func(d time.Weekday) bool { return strings.EqualFold(d.String()[:3], name) })
}

// minute is that of a day, or -1.
func minute(clock string) int {
	if clock == "24:00" {
		return day
	}
	t, err := time.Parse("15:04", clock)
	if err != nil {
		return -1
	}
	return t.Hour()*60 + t.Minute()
}

// Open reports whether a time, on the clock of its zone, is in the window.
func (w Window) Open(t time.Time) bool {
	at, today := t.Hour()*60+t.Minute(), t.Weekday()
	if w.from < w.to {
		return w.days[today] && w.from <= at && at < w.to
	}
	return w.days[today] && w.from <= at || w.days[(today+6)%7] && at < w.to
}
