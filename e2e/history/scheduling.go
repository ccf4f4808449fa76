// SPDX-License-Identifier: Apache-2.0

package history

import "time"

// SchedulingState is what happened to a pod that schedulers have to do with.
type SchedulingState string

// The states of pods for schedulers.
const (
	// PodPending pods have been created, and PodBound ones have a node.
	PodPending SchedulingState = "pending"
	PodBound   SchedulingState = "bound"
	// PodEvicted pods have the condition DisruptionTarget, with its reason.
	PodEvicted SchedulingState = "evicted"
	// PodDeleted pods are being deleted, and PodLeft ones are gone, as far as schedulers know.
	PodDeleted SchedulingState = "deleted"
	PodLeft    SchedulingState = "left"
	// PodDropped pods are nominated for their node no longer, and have none.
	PodDropped SchedulingState = "dropped"
	// PodPreempted is what an Event says of a victim: for whom it makes room.
	PodPreempted SchedulingState = "preempted"
	// PodPromised is what an Event says of a pod for which others are evicted: the devices that are kept for it until it is bound.
	PodPromised SchedulingState = "promised"
)

// The reasons of evictions that rules are about.
const (
	// ReasonPreempted evictions make room for a pod of a higher priority (k8s.io/api/core/v1, PodReasonPreemptionByScheduler).
	ReasonPreempted = "PreemptionByScheduler"
	// ReasonAllocatedTwice evictions end the collision of two allocations (docs/scheduler.md).
	ReasonAllocatedTwice = "AllocatedTwice"
)

// Scheduling is something that happened to a pod, with or without a node.
type Scheduling struct {
	// Pod is its UID.
	Pod       string          `json:"pod"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name,omitempty"`
	State     SchedulingState `json:"state"`
	// Scheduler and Priority are those of a pod that is pending. Replaced: somebody makes another if it is evicted, and its claims are
	// its own and not those of a PodGroup.
	Scheduler string `json:"scheduler,omitempty"`
	Priority  int32  `json:"priority,omitempty"`
	Replaced  bool   `json:"replaced,omitempty"`
	// Reason of an eviction.
	Reason string `json:"reason,omitempty"`
	// By is the UID of the pod that a victim makes room for.
	By string `json:"by,omitempty"`
	// Devices that are kept.
	Devices []string `json:"devices,omitempty"`
}

// Kind is KindScheduling.
func (Scheduling) Kind() Kind { return KindScheduling }

// pod is what a history has of a pod from schedulers' point of view.
type pod struct {
	Scheduling
	created Event
	// bound, deleted and left are the first of these events; nil for none. started is the first container.
	bound, deleted, left, started *Event
	evicted, promised, dropped    []Event
	// by are for whom it makes room.
	by []string
}

// isEnding reports whether the pod is deleted or gone before a time.
func (p *pod) isEnding(at time.Duration) bool { return p.endingAt() <= at }

// endingAt is when the pod is deleted, or evicted, or gone.
func (p *pod) endingAt() time.Duration {
	first := never
	for _, e := range []*Event{p.deleted, p.left} {
		if e != nil {
			first = min(first, e.At)
		}
	}
	if len(p.evicted) > 0 {
		first = min(first, p.evicted[0].At)
	}
	return first
}

// pods are those of a history, in the order in which they were created.
type pods struct {
	all   []*pod
	byUID map[string]*pod
}

// of are the pods with some UIDs as far as they are known.
func (p *pods) of(uids []string) (known []*pod, all bool) {
	for _, uid := range uids {
		if one := p.byUID[uid]; one != nil {
			known = append(known, one)
		}
	}
	return known, len(known) == len(uids) && len(uids) > 0
}

// readPods collects what is known of each pod.
func readPods(events []Event, containers []run) pods {
	found := pods{byUID: map[string]*pod{}}
	for i := range events {
		e := events[i]
		f, ok := e.Fact.(Scheduling)
		if !ok {
			continue
		}
		p := found.byUID[f.Pod]
		if p == nil {
			p = &pod{Scheduling: f, created: e}
			found.byUID[f.Pod] = p
			found.all = append(found.all, p)
		}
		p.note(&events[i], f)
	}
	for i := range containers {
		if p := found.byUID[containers[i].Pod]; p != nil && p.started == nil {
			p.started = &containers[i].start
		}
	}
	return found
}

func (p *pod) note(e *Event, f Scheduling) {
	first := func(into **Event) {
		if *into == nil {
			*into = e
		}
	}
	switch f.State {
	case PodPending: // an Event may come before
		p.Scheduling, p.created = f, *e
	case PodBound:
		first(&p.bound)
	case PodDeleted:
		first(&p.deleted)
	case PodLeft:
		first(&p.left)
	case PodEvicted:
		p.evicted = append(p.evicted, *e)
	case PodPromised:
		p.promised = append(p.promised, *e)
	case PodDropped:
		p.dropped = append(p.dropped, *e)
	case PodPreempted:
		p.by = append(p.by, f.By)
	}
}

// evictionOf is the first eviction of the pod for a reason.
func (p *pod) evictionOf(reason string) (Event, bool) {
	for _, e := range p.evicted {
		if e.Fact.(Scheduling).Reason == reason {
			return e, true
		}
	}
	return Event{}, false
}

func (p *pod) path() string { return p.Namespace + "/" + p.Name }

// Evictions are the UIDs of the pods that were evicted, with the reason of the first eviction of each.
func Evictions(h History) map[string]string {
	reasons := map[string]string{}
	for _, e := range h.Events {
		if f, ok := e.Fact.(Scheduling); ok && f.State == PodEvicted && reasons[f.Pod] == "" {
			reasons[f.Pod] = f.Reason
		}
	}
	return reasons
}
