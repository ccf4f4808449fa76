// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// soon is how long a pod may be new to its scheduler.
const soon = 30 * time.Second

// foreignSchedulers embed allocators of their own choice, by the names that their charts give them.
var foreignSchedulers = []string{"kai-scheduler", "volcano"}

// uncounted reports whether the claims are for admin access alone, and the pod's scheduler gives it whatever counters have left, as
// cleave-scheduler does and kube-scheduler does not (kubernetes/kubernetes#140729).
func (q *Question) uncounted() bool {
	if q.pod == nil || slices.Contains(append([]string{"", corev1.DefaultSchedulerName}, foreignSchedulers...), q.pod.Spec.SchedulerName) {
		return false
	}
	for _, claim := range q.claims {
		if slices.ContainsFunc(requestsOf(claim), func(r *request) bool { return !r.admin }) {
			return false
		}
	}
	return true
}

// waits adds what the pod waits for, whatever devices are free.
func (q *Question) waits(in Namespace, o Objects) {
	pod := q.pod
	for _, g := range pod.Spec.SchedulingGates {
		q.causes = append(q.causes, Cause{Kind: Gated, name: g.Name})
	}
	if slices.Contains(foreignSchedulers, pod.Spec.SchedulerName) {
		q.notes = append(q.notes, fmt.Sprintf("The pod's scheduler is %s, of which some releases allocate no partitions or shares: see "+
			"docs/queues.md. What fits is said as for kube-scheduler.", pod.Spec.SchedulerName))
	}
	if q.planned || len(pod.Spec.SchedulingGates) > 0 {
		return
	}
	looked, says := verdictOn(pod, in.Events)
	q.says = says
	if age := o.Now.Sub(pod.CreationTimestamp.Time); !looked && !o.Now.IsZero() && !pod.CreationTimestamp.IsZero() && age >= soon {
		unseen := Cause{Kind: NoScheduler, name: pod.Spec.SchedulerName, age: age}
		if in.EventsUnread != nil && !slices.Contains([]string{"", corev1.DefaultSchedulerName}, unseen.name) {
			unseen.remedy = fmt.Sprintf("its Events are not known: %v; if it has none, ", in.EventsUnread)
		}
		q.causes = append(q.causes, unseen)
	}
}

// endsOf says that a pod has ended, and that it is being deleted: kube-scheduler passes over both (NewInformerFactory in
// pkg/scheduler/scheduler.go, skipPodSchedule in schedule_one.go). The timestamp of a deletion includes the grace period.
func endsOf(pod *corev1.Pod) (ends []string) {
	if s := &pod.Status; s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed {
		why := slices.DeleteFunc([]string{string(s.Phase), s.Reason, s.Message}, func(text string) bool { return text == "" })
		ends = append(ends, "has ended: "+strings.TrimSuffix(strings.Join(why, ", "), "."))
	}
	if pod.DeletionTimestamp == nil {
		return ends
	}
	since := pod.DeletionTimestamp.Time
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		since = since.Add(-time.Duration(*grace) * time.Second)
	}
	end := "is being deleted since " + minute(since)
	if len(pod.Finalizers) > 0 {
		end += ", and kept by its finalizers " + strings.Join(pod.Finalizers, ", ")
	}
	if pod.Spec.NodeName != "" && len(ends) == 0 {
		end += ", and ends once its containers and claims have (docs/troubleshooting.md#terminating)"
	}
	return append(ends, end)
}

// verdictOn is whether a scheduler has looked at a pod, and what it said: kube-scheduler writes a condition, others may write Events
// alone.
func verdictOn(pod *corev1.Pod, events []corev1.Event) (looked bool, says string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			if c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated {
				says = c.Message
			}
			return true, says
		}
	}
	var last *corev1.Event
	for i := range events {
		if e := &events[i]; e.Reason == "FailedScheduling" && (last == nil || !timeOf(e).Before(timeOf(last))) {
			last = e
		}
	}
	if last == nil {
		return false, ""
	}
	return true, last.Message
}

func timeOf(e *corev1.Event) time.Time {
	return slices.MaxFunc([]time.Time{e.EventTime.Time, e.LastTimestamp.Time, e.FirstTimestamp.Time}, time.Time.Compare)
}

// isWait reports whether a cause leaves the devices alone: those are free, and yet the pod waits.
func (c *Cause) isWait() bool {
	return slices.Contains([]Kind{Gated, NoScheduler, SchedulerSays, SchedulerIgnores, NotCreated, Quota}, c.Kind)
}

// schedulers are those that pods of the cluster name which have a node, the most frequent first.
func (r *Running) schedulers() []string {
	if r == nil {
		return nil
	}
	count := tally{}
	for _, p := range r.Pods {
		if p.Spec.NodeName != "" && p.Spec.SchedulerName != "" {
			count.add(p.Spec.SchedulerName)
		}
	}
	slices.SortStableFunc(count.order, func(a, b string) int { return cmp.Compare(count.count[b], count.count[a]) })
	return count.order
}

// unknownScheduler notes that the scheduler of a pod that is not created yet may not run: no pod has its node from it.
func (q *Question) unknownScheduler(running *Running) []string {
	if !q.planned || !q.AsksPods() || running == nil || running.PodsUnread != nil {
		return nil
	}
	name, known := q.pod.Spec.SchedulerName, running.schedulers()
	if slices.Contains(known, name) {
		return nil
	}
	note := fmt.Sprintf("No pod of this cluster has its node from the scheduler %s", name)
	if near := suggest.Nearest(name, known); near != "" {
		return []string{note + suggest.Question(near)}
	}
	return []string{note + ": see that it runs."}
}

// describeWait says what a pod waits for.
func (c *Cause) describeWait() {
	switch c.Kind {
	case Gated:
		c.Message = fmt.Sprintf("the pod has the scheduling gate %s", c.name)
		c.Remedy = "whoever set it, such as a queue, removes it"
	case NotCreated:
		c.Message = fmt.Sprintf("the claim was not created from ResourceClaimTemplate %s", c.name)
		c.Remedy = "kube-controller-manager creates it: the pod's Events say what refuses it, such as a quota or a webhook"
	case NoScheduler:
		looked := "looked at the pod"
		if c.remedy != "" {
			looked = "set the pod's condition PodScheduled"
		}
		c.Message = fmt.Sprintf("no scheduler has %s since it was created %s ago: its schedulerName is %s", looked,
			duration.HumanDuration(c.age), cmp.Or(c.name, corev1.DefaultSchedulerName)) + suggest.Question(c.Suggestions...)
		c.Remedy = c.remedy + "start that scheduler, or create the pod anew with the schedulerName of one that runs"
		if others := slices.DeleteFunc(slices.Clone(c.known), func(s string) bool { return s == c.name }); len(others) > 0 {
			c.Remedy += "; others have their nodes from " + strings.Join(others, ", ")
		}
	case Quota:
		c.Message, c.Remedy = c.name, "wait until others of the namespace end, ask for less, or for a higher quota"
	case SchedulerSays:
		c.Message, c.Remedy = "the scheduler says: "+c.name, c.remedy
	case PodOver:
		c.Message = "it " + c.name + ": no scheduler looks at it"
	case SchedulerIgnores, NotCounted:
		c.Message, c.Remedy = c.name, c.remedy
	}
}
