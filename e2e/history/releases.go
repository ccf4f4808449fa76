// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"time"
)

// defaultMode is the compute mode that a GPU has of its own.
const defaultMode = "DEFAULT"

// trace is something that the plugin made for a claim, and that has to be gone after it.
type trace struct {
	what  string // a noun phrase for the start of a sentence
	made  Event
	ended *Event
	// isOf reports whether it is made for claims that have a device.
	isOf func(device string) bool
}

func (t *trace) end() time.Duration {
	if t.ended == nil {
		return never
	}
	return t.ended.At
}

// checkReleases checks that what was made for claims that have ended is gone within the bound.
func (c *checker) checkReleases() []Violation {
	var all []Violation
	for _, t := range slices.Concat(c.partitionTraces(), c.modeTraces()) {
		if v := c.checkReleased(&t); v != nil {
			all = append(all, *v)
		}
	}
	return all
}

// partitionTraces are the partitions that the plugin created.
func (c *checker) partitionTraces() []trace {
	var all []trace
	for _, p := range c.partitions {
		if c.by(p.created) && !slices.ContainsFunc(c.limits.Kept, p.isOf) {
			all = append(all, trace{fmt.Sprintf("Partition %s (serial %d)", p.name(), p.Serial), p.created, p.destroyed, p.isOf})
		}
	}
	return all
}

// modeTraces are the times in which GPUs had another compute mode than their own, which MPS needs.
func (c *checker) modeTraces() []trace {
	var all []trace
	open := map[string]int{} // the last of each GPU
	for i, e := range c.modes {
		f := e.Fact.(Hardware)
		if f.Change != ComputeMode {
			continue
		}
		if at, ok := open[f.GPU]; ok {
			all[at].ended = &c.modes[i]
			delete(open, f.GPU)
		}
		if f.Value != defaultMode && c.by(e) {
			open[f.GPU] = len(all)
			all = append(all, trace{
				what: fmt.Sprintf("Compute mode %s of %s", f.Value, f.GPU), made: e,
				isOf: func(device string) bool { return gpuOf(device) == f.GPU },
			})
		}
	}
	return all
}

// use is a time for which a claim has reason to have something: from the first call for it until it is over.
type use struct {
	claim string
	span
	ended Event
	// had: it was prepared, so that what was there before is its own.
	had bool
}

// checkReleased checks that something is not there when no claim has had reason to have it for longer than the bound.
// Partitions that are created while no claim is prepared are those of a layout.
func (c *checker) checkReleased(t *trace) *Violation {
	uses := c.uses(t)
	at := t.made.At
	if !slices.ContainsFunc(uses, func(u use) bool { return u.from <= at && at <= u.to }) {
		return nil
	}
	var last *use
	for free := at; ; { // follow the uses, each of which begins before the time of the one before is up
		next := slices.IndexFunc(uses, func(u use) bool {
			return u.from <= c.deadline(free) && u.to > free && (u.had || u.from <= at && at <= u.to)
		})
		if next < 0 {
			break
		}
		last, free = &uses[next], uses[next].to
	}
	if last == nil || last.to == never {
		return nil
	}
	deadline := c.deadline(last.to)
	if t.end() <= deadline || c.end < deadline {
		return nil
	}
	v := &Violation{
		Rule: RuleRelease, Events: []Event{t.made, last.ended},
		Text: fmt.Sprintf("%s, which was there from %s on and for claim %s, was still there at %s. The claim ended at %s, and what it had must "+
			"be free within %s.", t.what, t.made.At, last.claim, min(t.end(), c.end), last.to, c.limits.Release),
	}
	if t.ended != nil {
		v.Events = append(v.Events, *t.ended)
	}
	return v
}

// uses are the times in which claims have reason to have something.
func (c *checker) uses(t *trace) []use {
	var uses []use
	for _, cl := range c.claims {
		if !cl.wants(t) {
			continue
		}
		var now *use
		for _, k := range cl.calls {
			if k.method == Prepare && now == nil {
				now = &use{claim: cl.uid, span: span{k.call.At, never}}
			}
			if now != nil && k.method == Prepare && k.ok() {
				now.had = true
			}
			if now != nil && k.method == Unprepare && k.ok() {
				now.to, now.ended = k.returned.At, *k.returned
				uses, now = append(uses, *now), nil
			}
		}
		if now == nil {
			continue
		}
		if gone := cl.goneAfter(now.from); gone != nil {
			now.to, now.ended = gone.At, *gone
		}
		uses = append(uses, *now)
	}
	return uses
}

// wants reports whether the claim was ever allocated a device that something is for.
func (cl *claim) wants(t *trace) bool {
	return slices.ContainsFunc(cl.seen, func(e Event) bool {
		return slices.ContainsFunc(e.Fact.(Claim).Devices, func(a Allocated) bool { return !a.Admin && t.isOf(a.Device) })
	})
}

// goneAfter is the event after which the API server had no allocation of the claim any more; nil if it has one at the end.
func (cl *claim) goneAfter(at time.Duration) *Event {
	var gone *Event
	for i, e := range cl.seen {
		switch {
		case e.Fact.(Claim).State == ClaimAllocated:
			gone = nil
		case gone == nil && e.At >= at:
			gone = &cl.seen[i]
		}
	}
	return gone
}
