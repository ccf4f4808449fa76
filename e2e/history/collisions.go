// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"time"
)

// statusLag is how much later than a container's start the API server may know of it: the kubelet writes it, once it has noticed.
const statusLag = 5 * time.Second

// checkCollisions checks what becomes of pods whose devices were allocated twice, as two schedulers may do at once.
func checkCollisions(c *checker, h History) []Violation {
	return slices.Concat(checkStartedEvicted(c, h), checkKept(c, h))
}

// checkStartedEvicted checks that no pod is evicted for a collision that was known to have started.
func checkStartedEvicted(c *checker, h History) []Violation {
	known := readDisturbances(h, statusLag)
	var all []Violation
	for _, p := range c.pods.all {
		e, ok := p.evictionOf(ReasonAllocatedTwice)
		if !ok || p.started == nil || e.At <= known.deadline(p.started.At) {
			continue
		}
		all = append(all, Violation{Rule: RuleCollision, Events: []Event{*p.started, e}, Text: fmt.Sprintf(
			"At %s pod %s was evicted, as its devices were allocated twice. It had started at %s.", e.At, p.path(), p.started.At)})
	}
	return all
}

// checkKept checks that no pod is kept from starting by another's devices for longer than the bound. It goes by pairs of claims: where
// several are in the way together, nothing is said.
func checkKept(c *checker, h History) []Violation {
	d := readDisturbances(h, c.limits.Collision, c.limits.Aside...)
	var all []Violation
	for _, a := range allocationsOf(c) {
		waits, ok := a.waits(&c.pods)
		if !ok {
			continue
		}
		for _, other := range c.claims {
			if other == a.claim {
				continue
			}
			for _, t := range other.tenures {
				if v := checkKeptBy(c, &a, waits, other, t, &d); v != nil {
					all = append(all, *v)
				}
			}
		}
	}
	return all
}

// waits is for how long its pods have their node and have not started; not ok for those that are never evicted.
func (a *allocation) waits(all *pods) (waits span, ok bool) {
	known, ok := all.of(a.pods)
	waits = a.span
	for _, t := range a.claim.tenures {
		if t.acquire.to >= a.from {
			waits.to = min(waits.to, t.acquire.to)
		}
	}
	for _, p := range known {
		if !p.Replaced || p.bound == nil {
			return waits, false
		}
		waits.from, waits.to = max(waits.from, p.bound.At), min(waits.to, p.endingAt())
		if p.started != nil {
			waits.to = min(waits.to, p.started.At)
		}
	}
	return waits, ok
}

func checkKeptBy(c *checker, a *allocation, waits span, other *claim, t *tenure, d *disturbances) *Violation {
	from, until := max(waits.from, t.acquire.to), min(waits.to, t.release.from, c.end)
	if from >= until || until <= d.deadline(from) || !c.collide(a.devices, other.owned(t)) {
		return nil
	}
	var users []string
	for _, e := range other.seen {
		users = append(users, e.Fact.(Claim).Pods...)
	}
	if pods, known := c.pods.of(users); known {
		until = min(until, endOf(pods))
	}
	if until <= d.deadline(from) {
		return nil
	}
	return &Violation{Rule: RuleCollision, Events: []Event{a.began, *t.prepared.returned}, Text: fmt.Sprintf(
		"Claim %s could not be prepared from %s to %s, as claim %s had its devices. One of their pods must go within %s.",
		a.claim.uid, from, until, other.uid, c.limits.Collision)}
}
