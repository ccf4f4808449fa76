// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// watched is one GPU.
type watched struct {
	*State
	// last is the time of the last poll; zero before the first.
	last time.Time
	// due requests a poll ahead of schedule, polling is set while one runs.
	due, polling bool
	// reported are the conditions that the observer knows, once introduced; at is when all of them were last reported.
	reported   []Condition
	introduced bool
	at         time.Time
}

// repeatAfter is when conditions that last are reported as if they began: the API server deletes the Events about them after an hour.
const repeatAfter = 30 * time.Minute

// forget drops the state of a GPU that was reset, but for what a reset does not end: the next poll is its first. Reported conditions stay
// until then.
func (w *watched) forget() {
	kept := slices.DeleteFunc(w.Conditions(), func(c Condition) bool { return c.Reason != ReasonRemapFailed })
	w.State, w.last = NewState(), time.Time{}
	w.conditions = kept
}

// isDue reports whether it is time to poll a GPU.
func (w *watched) isDue(now time.Time) bool {
	since := now.Sub(w.last)
	return w.last.IsZero() || w.due && since >= minPollGap || since >= unhealthyEvery && !w.Healthy() || since >= healthyEvery
}

// change returns the conditions that began and ended since the last call, or those that are to be reported again.
func (w *watched) change(g *gpu.GPU, now time.Time) (Change, bool) {
	c := Change{GPU: g, Now: w.Conditions()}
	c.Began = without(c.Now, w.reported)
	c.Ended = without(w.reported, c.Now)
	if len(c.Now) > 0 && now.Sub(w.at) >= repeatAfter {
		c.Began, w.at = c.Now, now
	}
	first := !w.introduced
	w.reported, w.introduced = c.Now, true
	return c, first || len(c.Began)+len(c.Ended) > 0
}

// without returns the conditions of one list that another lacks.
func without(list, other []Condition) (left []Condition) {
	for _, c := range list {
		if !slices.ContainsFunc(other, c.same) {
			left = append(left, c)
		}
	}
	return left
}
