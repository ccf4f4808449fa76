// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"time"
)

// checkEndings checks that no pod and no claim that was deleted stays Terminating.
func checkEndings(c *checker, h History) []Violation {
	ending := readDisturbances(h, c.limits.Ending)
	return slices.Concat(checkPodEndings(c, h, &ending), checkClaimEndings(c, h, &ending))
}

// stays reports whether something that has to go since a time is there for longer than the bound: until an event, or to the end of the
// history if there is none.
func stays(c *checker, ending *disturbances, since time.Duration, gone *Event) bool {
	deadline := ending.deadline(since)
	return c.end >= deadline && (gone == nil || c.earliest(SourceAPI, gone.At) > deadline)
}

// checkPodEndings checks that pods go: for that, the kubelet has to get an answer to Unprepare.
func checkPodEndings(c *checker, h History, ending *disturbances) []Violation {
	var all []Violation
	for i, e := range h.Events {
		pod, ok := e.Fact.(Pod)
		if !ok || pod.State != PodEnding {
			continue
		}
		last, ended := lastOf(c.containers, pod.UID, e)
		if !ended {
			continue
		}
		gone := goneAfter(h.Events[i:], pod.UID)
		if !stays(c, ending, last.At, gone) {
			continue
		}
		v := Violation{Rule: RuleEnding, Events: []Event{e}}
		until := c.end
		if gone != nil {
			v.Events, until = append(v.Events, *gone), gone.At
		}
		v.Text = fmt.Sprintf("Pod %s/%s was still there at %s. It was deleted at %s, its last container ended before %s, and it must be gone "+
			"within %s.", pod.Namespace, pod.Name, until, e.At, last.At, c.limits.Ending)
		all = append(all, v)
	}
	return all
}

// lastOf is when a pod that was deleted had its last container: at the latest of their ends and of the deletion. It is not ended
// while one runs.
func lastOf(containers []run, pod string, deleted Event) (last Event, ended bool) {
	last = deleted
	for _, r := range containers {
		if r.Pod != pod {
			continue
		}
		if r.end == nil {
			return last, false
		}
		if r.end.At > last.At {
			last = *r.end
		}
	}
	return last, true
}

// goneAfter is the event that says that a pod is gone; nil if there is none.
func goneAfter(events []Event, pod string) *Event {
	for i := range events {
		if f, ok := events[i].Fact.(Pod); ok && f.UID == pod && f.State == PodGone {
			return &events[i]
		}
	}
	return nil
}

// checkClaimEndings checks that claims go: for that, Kubernetes has to take back what they have allocated, and its finalizer.
func checkClaimEndings(c *checker, h History, ending *disturbances) []Violation {
	left := podsLeft(h)
	var all []Violation
	for _, cl := range c.claims {
		var deleted, gone *Event
		free := never
		for i := range cl.seen {
			e := &cl.seen[i]
			f := e.Fact.(Claim)
			if f.State == ClaimDeleted {
				gone = e
				continue
			}
			if f.Deleting && deleted == nil {
				deleted = e
			}
			free = min(free, freeAt(*e, left))
		}
		if free == never || !stays(c, ending, free, gone) {
			continue
		}
		f := deleted.Fact.(Claim)
		v, until := Violation{Rule: RuleEnding, Events: []Event{*deleted}}, c.end
		if gone != nil {
			v.Events, until = append(v.Events, *gone), gone.At
		}
		v.Text = fmt.Sprintf("Claim %s/%s was still there at %s. It was deleted at %s, nothing kept it from %s on, and it must be gone "+
			"within %s.", f.Namespace, f.Name, until, deleted.At, free, c.limits.Ending)
		all = append(all, v)
	}
	return all
}

// freeAt is when nothing keeps a claim any more that is as an event says; never if something does, or if it is not being deleted. That
// is final: nobody can reserve it then, or put a finalizer on it.
func freeAt(e Event, left map[string]time.Duration) time.Duration {
	f := e.Fact.(Claim)
	if !f.Deleting || f.Held {
		return never
	}
	at := e.At
	for _, pod := range f.Pods {
		end, ok := left[pod]
		if !ok {
			return never
		}
		at = max(at, end)
	}
	return at
}

// podsLeft is when pods were gone, by their UIDs. Those that were deleted by force are known from what schedulers see alone.
func podsLeft(h History) map[string]time.Duration {
	left := map[string]time.Duration{}
	for _, e := range h.Events {
		uid := ""
		switch f := e.Fact.(type) {
		case Pod:
			if f.State == PodGone {
				uid = f.UID
			}
		case Scheduling:
			if f.State == PodLeft {
				uid = f.Pod
			}
		}
		if _, known := left[uid]; uid != "" && !known {
			left[uid] = e.At
		}
	}
	return left
}
