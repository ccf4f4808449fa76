// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// Limits bound what is waited for.
type Limits struct {
	// Eviction is how long a PodDisruptionBudget may refuse an eviction.
	Eviction time.Duration
	// Replacement is how long the pod that was evicted and its replacement may take, besides the grace period of the former.
	Replacement time.Duration
}

// Attempt is a move that is under way.
type Attempt struct {
	Move repack.Move
	// Grace is the grace period of the pod.
	Grace time.Duration
	// Began is when the eviction was asked for first, Evicted when it was granted; zero until then.
	Began, Evicted time.Time
}

// Seen is what the cluster shows of an attempt.
type Seen struct {
	Now time.Time
	// Old is the pod to evict, nil once it is gone. Held says that its claims still have devices.
	Old  *corev1.Pod
	Held bool
	// New are the pods of the same controller that were not there before.
	New []Replacement
	// Refused is why the Eviction API refuses for now.
	Refused string
}

// Replacement is a pod, and where it has devices: nil until it has a node, and all its claims are allocated.
type Replacement struct {
	Pod *corev1.Pod
	At  *repack.Place
}

// Action is what to do next.
type Action string

// The actions.
const (
	// Evict asks the Eviction API.
	Evict Action = "Evict"
	// Wait looks again later.
	Wait Action = "Wait"
	// Done goes on with the next move.
	Done Action = "Done"
	// Halt ends the repack.
	Halt Action = "Halt"
)

// Reason is why a repack stops.
type Reason string

// The reasons.
const (
	// Changed: the cluster is not the one that was planned for.
	Changed Reason = "Changed"
	// Elsewhere: a replacement has other devices than the plan says.
	Elsewhere Reason = "Elsewhere"
	// Refused: a PodDisruptionBudget has refused for too long.
	Refused Reason = "Refused"
	// Timeout: a pod does not end, or its replacement does not run.
	Timeout Reason = "Timeout"
	// Closed: it is not the time for evictions, or there were enough.
	Closed Reason = "Closed"
)

// Decision is what to do next, and why.
type Decision struct {
	Do      Action
	Reason  Reason
	Message string
}

func halt(reason Reason, format string, args ...any) Decision {
	return Decision{Halt, reason, fmt.Sprintf(format, args...)}
}

func wait(format string, args ...any) Decision {
	return Decision{Do: Wait, Message: fmt.Sprintf(format, args...)}
}

// Next decides about an attempt.
func (a *Attempt) Next(seen Seen, limits Limits) Decision {
	if a.Evicted.IsZero() {
		return a.beforeEviction(seen, limits)
	}
	waits, d := a.replacement(seen)
	if d.Do == Halt {
		return d
	}
	switch {
	case seen.Old != nil:
		waits = "the pod to end"
	case seen.Held:
		waits = "the claims of the pod to be deallocated"
	case d.Do == Done:
		return d
	}
	if limit := limits.Replacement + a.Grace; seen.Now.Sub(a.Evicted) > limit {
		return halt(Timeout, "%s was evicted %s ago, and the repack still waits for %s", a.name(), limit, waits)
	}
	return wait("%s", waits)
}

func (a *Attempt) name() string { return "pod " + a.Move.Namespace + "/" + a.Move.Pod }

func (a *Attempt) beforeEviction(seen Seen, limits Limits) Decision {
	switch {
	case seen.Old == nil:
		return halt(Changed, "%s is gone before it was evicted", a.name())
	case seen.Old.DeletionTimestamp != nil:
		return halt(Changed, "another client deletes %s", a.name())
	case len(seen.New) > 0:
		return halt(Changed, "%s created pod %s meanwhile", a.Move.Controller, seen.New[0].Pod.Name)
	case seen.Refused != "" && seen.Now.Sub(a.Began) > limits.Eviction:
		return halt(Refused, "the eviction of %s is refused since %s: %s", a.name(), limits.Eviction, seen.Refused)
	}
	return Decision{Do: Evict, Message: seen.Refused}
}

// replacement judges the pods that came after the eviction, or says what it waits for.
func (a *Attempt) replacement(seen Seen) (waits string, d Decision) {
	if len(seen.New) == 0 {
		return a.Move.Controller + " to create a replacement", d
	}
	if len(seen.New) > 1 {
		return "", halt(Changed, "%s created %d pods, and it is not known which replaces %s", a.Move.Controller, len(seen.New), a.name())
	}
	pod, at := seen.New[0].Pod, seen.New[0].At
	name := "pod " + pod.Namespace + "/" + pod.Name
	switch {
	case pod.DeletionTimestamp != nil:
		return "", halt(Changed, "the replacement, %s, is deleted", name)
	case at != nil && !a.Move.Has(*at):
		return "", halt(Elsewhere, "the replacement of %s, %s, is at %s, and %s was planned", a.name(), name, at, a.Move.Where())
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return "", halt(Changed, "the replacement, %s, has ended: %s", name, pod.Status.Phase)
	case at == nil:
		return "devices for the replacement, " + name + unscheduled(pod), d
	case !isReady(pod):
		return "the replacement, " + name + ", to be ready", d
	}
	return "", Decision{Do: Done, Message: fmt.Sprintf("%s runs at %s", name, at)}
}

func isReady(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unscheduled is what the scheduler says of a pod without a node, with a colon before.
func unscheduled(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return ": " + c.Message
		}
	}
	return ""
}
