// SPDX-License-Identifier: Apache-2.0

package history

import "fmt"

// checkEndings checks that a pod that was deleted does not stay Terminating: for that, the kubelet has to get an answer to Unprepare.
func checkEndings(c *checker, h History) []Violation {
	var all []Violation
	ending := readDisturbances(h, c.limits.Ending)
	for i, e := range h.Events {
		pod, ok := e.Fact.(Pod)
		if !ok || pod.State != PodEnding {
			continue
		}
		last, ended := lastOf(c.containers, pod.UID, e)
		if !ended {
			continue
		}
		deadline := ending.deadline(last.At)
		gone := goneAfter(h.Events[i:], pod.UID)
		if c.end < deadline || gone != nil && c.earliest(SourceAPI, gone.At) <= deadline {
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
