// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"time"
)

// settleTime is within what a pod gets other devices that have become free meanwhile: nobody keeps for it what it is not to get.
const settleTime = 3 * time.Second

// checkPreemptions checks that pods are evicted for pods of a higher priority alone, and not in vain.
func checkPreemptions(c *checker, h History) []Violation {
	victims := map[string][]*pod{}
	var all []Violation
	for _, v := range c.pods {
		e, ok := v.evictionOf(ReasonPreempted)
		if !ok {
			continue
		}
		known, _ := c.podsOf(v.by)
		if len(known) == 0 && !c.hasPreemptor(v, e.At) {
			all = append(all, Violation{Rule: RulePreemption, Events: []Event{e}, Text: fmt.Sprintf(
				"At %s pod %s was evicted to make room. No pod of a higher priority than %d waited for a node.", e.At, v.path(), v.Priority)})
		}
		for _, p := range known {
			victims[p.Pod] = append(victims[p.Pod], v)
			if v.Priority >= p.Priority {
				all = append(all, Violation{Rule: RulePreemption, Events: []Event{p.created, e}, Text: fmt.Sprintf(
					"At %s pod %s of priority %d was evicted for pod %s. That has priority %d.", e.At, v.path(), v.Priority, p.path(), p.Priority)})
			}
		}
	}
	d, settle := readDisturbances(h, c.limits.Preemption), readDisturbances(h, settleTime)
	allocations := c.allAllocations()
	for _, p := range c.pods {
		if v := c.checkPreemptor(p, victims[p.Pod], allocations, &d); v != nil {
			all = append(all, *v)
		}
		for i := range p.promised {
			all = append(all, c.checkPromise(h, p, i, allocations, &settle)...)
		}
	}
	return all
}

// hasPreemptor reports whether a pod may have been evicted for another at a time, of which no Event tells: Events may be lost.
func (c *checker) hasPreemptor(v *pod, at time.Duration) bool {
	return slices.ContainsFunc(c.pods, func(p *pod) bool {
		pending := p.created.At <= at && (p.bound == nil || p.bound.At > at-c.limits.APILag) && p.endingAt() > at-c.limits.APILag
		return p.Priority > v.Priority && pending
	})
}

// checkPreemptor checks that a pod runs once its victims have gone, or goes itself.
func (c *checker) checkPreemptor(p *pod, victims []*pod, allocations []allocation, d *disturbances) *Violation {
	if len(victims) == 0 {
		return nil
	}
	evicted, gone := never, time.Duration(0)
	var events []Event
	for _, v := range victims {
		e, _ := v.evictionOf(ReasonPreempted)
		if v.left == nil {
			return nil // another rule has pods that do not go
		}
		evicted, gone = min(evicted, e.At), max(gone, v.left.At)
		events = append(events, e, *v.left)
	}
	deadline := d.deadline(gone)
	if c.end < deadline || p.started != nil && p.started.At <= deadline || p.isEnding(deadline) {
		return nil
	}
	if c.isOvertaken(p, victims, allocations, span{evicted - c.limits.APILag, deadline}) {
		return nil
	}
	until := c.end
	if p.started != nil {
		until = p.started.At
	}
	return &Violation{Rule: RulePreemption, Events: events, Text: fmt.Sprintf(
		"Pod %s did not run before %s. The pods that were evicted for it had gone at %s, and it must run or go within %s.",
		p.path(), until, gone, c.limits.Preemption)}
}

// isOvertaken reports whether somebody got what a pod was to get who may: by a higher priority, or from another scheduler, which knows
// nothing of it.
func (c *checker) isOvertaken(p *pod, victims []*pod, allocations []allocation, in span) bool {
	var freed []Allocated
	for _, a := range allocations {
		if slices.ContainsFunc(victims, func(v *pod) bool { return slices.Contains(a.pods, v.Pod) }) {
			freed = append(freed, a.devices...)
		}
	}
	for _, e := range p.promised {
		freed = append(freed, promisedBy(e)...)
	}
	return slices.ContainsFunc(allocations, func(a allocation) bool {
		if a.from < in.from || a.from > in.to || slices.Contains(a.pods, p.Pod) {
			return false
		}
		pods, known := c.podsOf(a.pods)
		may := !known || slices.ContainsFunc(pods, func(q *pod) bool { return q.Scheduler != p.Scheduler || q.Priority > p.Priority })
		return may && slices.ContainsFunc(freed, func(one Allocated) bool { return c.collide(a.devices, []Allocated{one}) })
	})
}

func promisedBy(e Event) (devices []Allocated) {
	for _, name := range e.Fact.(Scheduling).Devices {
		devices = append(devices, Allocated{Device: name})
	}
	return devices
}

// checkPromise checks that what is kept for a pod is given to no pod of the same or a lower priority by the same scheduler before.
func (c *checker) checkPromise(h History, p *pod, number int, allocations []allocation, settle *disturbances) []Violation {
	promise := p.promised[number]
	until := min(c.end, p.endingAt())
	got := never
	for _, a := range allocations {
		if slices.Contains(a.pods, p.Pod) {
			got = min(got, a.from)
		}
	}
	if number+1 < len(p.promised) {
		until = min(until, p.promised[number+1].At)
	}
	for _, e := range p.dropped {
		if e.At >= promise.At {
			until = min(until, e.At)
		}
	}
	var all []Violation
	for _, a := range allocations {
		if a.from <= promise.At || a.from >= min(until, got) || got <= settle.deadline(a.from) || !c.collide(a.devices, promisedBy(promise)) {
			continue
		}
		pods, known := c.podsOf(a.pods)
		if !known || slices.ContainsFunc(pods, func(q *pod) bool { return q.Scheduler != p.Scheduler || q.Priority > p.Priority }) ||
			c.restarted(h, span{promise.At, a.from}) {
			continue
		}
		all = append(all, Violation{Rule: RulePreemption, Events: []Event{promise, a.began}, Text: fmt.Sprintf(
			"At %s claim %s of pod %s was allocated %v. At %s that was kept for pod %s, whose priority is not lower.",
			a.from, a.claim.uid, pods[0].path(), a.names(), promise.At, p.path())})
	}
	return all
}

// restarted reports whether schedulers may have forgotten what they keep.
func (c *checker) restarted(h History, in span) bool {
	return slices.ContainsFunc(h.Events, func(e Event) bool {
		f, ok := e.Fact.(Fault)
		return ok && slices.Contains(c.limits.Restarts, f.Name) && f.State == FaultBegan && in.from <= e.At && e.At <= in.to
	})
}
