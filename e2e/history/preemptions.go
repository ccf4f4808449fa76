// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"time"
)

// settleTime is within what a pod gets other devices that have become free meanwhile: nobody keeps for it what it is not to get.
const settleTime = 3 * time.Second

// preemptions is what it takes to check them.
type preemptions struct {
	*checker
	allocations []allocation
	// running and settling are with the bounds for a pod to run, and to get other devices. At restarts schedulers forget what they keep.
	running, settling disturbances
	restarts          []time.Duration
}

// checkPreemptions checks that pods are evicted for pods of a higher priority alone, and not in vain.
func checkPreemptions(checked *checker, h History) []Violation {
	c := &preemptions{checker: checked, allocations: allocationsOf(checked), running: readDisturbances(h, checked.limits.Preemption),
		settling: readDisturbances(h, settleTime)}
	for _, e := range h.Events {
		if f, ok := e.Fact.(Fault); ok && f.State == FaultBegan && slices.Contains(c.limits.Restarts, f.Name) {
			c.restarts = append(c.restarts, e.At)
		}
	}
	victims := map[string][]*pod{}
	var all []Violation
	for _, v := range c.pods.all {
		e, ok := v.evictionOf(ReasonPreempted)
		if !ok {
			continue
		}
		known, _ := c.pods.of(v.by)
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
	for _, p := range c.pods.all {
		if v := c.checkPreemptor(p, victims[p.Pod]); v != nil {
			all = append(all, *v)
		}
		for i := range p.promised {
			all = append(all, c.checkPromise(p, i)...)
		}
	}
	return all
}

// hasPreemptor reports whether a pod may have been evicted for another at a time, of which no Event tells: Events may be lost.
func (c *preemptions) hasPreemptor(v *pod, at time.Duration) bool {
	return slices.ContainsFunc(c.pods.all, func(p *pod) bool {
		pending := p.created.At <= at && (p.bound == nil || p.bound.At > at-c.limits.APILag) && p.endingAt() > at-c.limits.APILag
		return p.Priority > v.Priority && pending
	})
}

// checkPreemptor checks that a pod runs once its victims have gone, or goes itself.
func (c *preemptions) checkPreemptor(p *pod, victims []*pod) *Violation {
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
	deadline := c.running.deadline(gone)
	if c.end < deadline || p.started != nil && p.started.At <= deadline || p.isEnding(deadline) {
		return nil
	}
	if c.isOvertaken(p, victims, span{evicted - c.limits.APILag, deadline}) {
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
func (c *preemptions) isOvertaken(p *pod, victims []*pod, in span) bool {
	var freed []Allocated
	for _, a := range c.allocations {
		if slices.ContainsFunc(victims, func(v *pod) bool { return slices.Contains(a.pods, v.Pod) }) {
			freed = append(freed, a.devices...)
		}
	}
	for _, e := range p.promised {
		freed = append(freed, promisedBy(e)...)
	}
	return slices.ContainsFunc(c.allocations, func(a allocation) bool {
		if a.from < in.from || a.from > in.to || slices.Contains(a.pods, p.Pod) {
			return false
		}
		pods, known := c.pods.of(a.pods)
		may := !known || slices.ContainsFunc(pods, func(q *pod) bool { return q.Scheduler != p.Scheduler || q.Priority > p.Priority })
		return may && slices.ContainsFunc(freed, func(one Allocated) bool { return c.collide(a.devices, []Allocated{one}) })
	})
}

// isContested reports whether others than the victims have what is promised: it was allocated twice. Schedulers know allocated
// devices by their names (allocateddevices.go of kube-scheduler 1.37), so of two claims that have one, they forget both with the first.
func (c *preemptions) isContested(p *pod, promise Event) bool {
	at := promise.At + c.limits.APILag
	return slices.ContainsFunc(c.allocations, func(a allocation) bool {
		if a.from > at || a.to <= promise.At || slices.Contains(a.pods, p.Pod) || !c.collide(a.devices, promisedBy(promise)) {
			return false
		}
		pods, known := c.pods.of(a.pods)
		return !known || endOf(pods) > at
	})
}

func promisedBy(e Event) (devices []Allocated) {
	for _, name := range e.Fact.(Scheduling).Devices {
		devices = append(devices, Allocated{Device: name})
	}
	return devices
}

// checkPromise checks that what is kept for a pod is given to no pod of the same or a lower priority by the same scheduler before.
func (c *preemptions) checkPromise(p *pod, number int) []Violation {
	promise := p.promised[number]
	if c.isContested(p, promise) {
		return nil
	}
	until := min(c.end, p.endingAt())
	got := never
	for _, a := range c.allocations {
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
	for _, a := range c.allocations {
		if a.from <= promise.At || a.from >= min(until, got) || got <= c.settling.deadline(a.from) || !c.collide(a.devices, promisedBy(promise)) {
			continue
		}
		pods, known := c.pods.of(a.pods)
		if !known || slices.ContainsFunc(pods, func(q *pod) bool { return q.Scheduler != p.Scheduler || q.Priority > p.Priority }) ||
			slices.ContainsFunc(c.restarts, func(at time.Duration) bool { return promise.At <= at && at <= a.from }) {
			continue
		}
		all = append(all, Violation{Rule: RulePreemption, Events: []Event{promise, a.began}, Text: fmt.Sprintf(
			"At %s claim %s of pod %s was allocated %v. At %s that was kept for pod %s, whose priority is not lower.",
			a.from, a.claim.uid, pods[0].path(), a.names(), promise.At, p.path())})
	}
	return all
}
