// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// disturbances are when something was broken on purpose.
type disturbances struct {
	// bound is Limits.Release, and end that of the history.
	bound, end time.Duration
	spans      []span
}

// readDisturbances finds when the plugin cannot be expected to do its work in time: while faults last, and while the driver or
// a GPU is away. Faults of some names do not count.
func readDisturbances(h History, bound time.Duration, except ...string) disturbances {
	d := disturbances{bound: bound, end: h.End()}
	open := map[string]time.Duration{}
	for _, e := range h.Events {
		switch f := e.Fact.(type) {
		case Fault:
			if slices.Contains(except, f.Name) {
				continue
			}
			key := fmt.Sprint(f.ID, f.Name, f.Target)
			if from, ok := open[key]; ok {
				d.spans = append(d.spans, span{from, e.At})
			}
			open[key] = e.At
			if f.State == FaultRecovered {
				delete(open, key)
			}
		case Hardware:
			d.lost(open, f, e.At)
		}
	}
	for _, from := range open {
		d.spans = append(d.spans, span{from, d.end})
	}
	slices.SortFunc(d.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return d
}

// lost notes that a GPU, or the driver of all, is away or back.
func (d *disturbances) lost(open map[string]time.Duration, f Hardware, at time.Duration) {
	switch f.Change {
	case GPULost, DriverUnloaded:
		if _, ok := open["hardware"+f.GPU]; !ok {
			open["hardware"+f.GPU] = at
		}
	case GPUBack, DriverLoaded:
		if from, ok := open["hardware"+f.GPU]; ok {
			d.spans = append(d.spans, span{from, at})
			delete(open, "hardware"+f.GPU)
		}
	}
}

// deadline is when something has to be free that was released at a time: once the bound is over, for which only the time
// counts in which nothing was broken.
func (d *disturbances) deadline(released time.Duration) time.Duration {
	deadline := released + d.bound
	counted := released // what is before is taken into account
	for _, s := range d.spans {
		from, to := max(s.from, counted), s.to
		if from < deadline && from < to {
			deadline += to - from
			counted = to
		}
	}
	return deadline
}
