// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// priorityBed is an API server with pods that evict others.
type priorityBed struct{ *bed }

// newPriorityBed has PriorityClasses high, middle and low, and patient, which is like high and evicts nobody.
func newPriorityBed(t *testing.T, nodes ...string) priorityBed {
	t.Helper()
	b := priorityBed{newBed(t, nodes...)}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for name, value := range map[string]int32{"high": 1000, "patient": 1000, "middle": 500, "low": -1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if name == "patient" {
			class.PreemptionPolicy = new(corev1.PreemptNever)
		}
		must(t, workload.Client{Kube: b.kube}.CreatePriority(ctx, namespace, class))
	}
	return b
}

func priority(class string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.PriorityClassName = class }
}

// graceful pods end 10 minutes after they are evicted: there is no kubelet, and the tests end them.
func graceful(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) }

// ending are the pods that were evicted, once there are so many.
func (b priorityBed) ending(n int) (names []string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err := workload.Until(ctx, fmt.Sprintf("%d pods to be evicted", n), func(ctx context.Context) (bool, string, error) {
		var err error
		names, err = b.evicted(ctx)
		return len(names) >= n, strings.Join(names, ", "), err
	})
	if err != nil {
		b.t.Fatalf("%v; the scheduler's log ends with:\n%s", err, b.scheduler.LogTail(20))
	}
	if len(names) > n {
		b.t.Fatalf("evicted are %v, want %d", names, n)
	}
	return names
}

// evicted are the pods that end because of preemption.
func (b priorityBed) evicted(ctx context.Context) (names []string, err error) {
	pods, err := b.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp == nil {
			continue
		}
		names = append(names, p.Name)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Reason != corev1.PodReasonPreemptionByScheduler {
				return nil, fmt.Errorf("pod %s has condition %s for %s", p.Name, c.Type, c.Reason)
			}
		}
	}
	return names, nil
}

// gone is what the kubelet does when a pod has ended.
func (b priorityBed) gone(name string) {
	b.t.Helper()
	must(b.t, b.kube.CoreV1().Pods(namespace).Delete(b.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
}

// running waits until a pod has a node.
func (b *bed) running(name string) {
	b.t.Helper()
	b.until("to have a node", name, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
}

// TestPreemption_Whole: what the victim leaves is for the pod that it was evicted for, between its end, the release of its claim and the
// next attempt, and nobody else is evicted meanwhile.
func TestPreemption_Whole(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful)
	b.scheduled(8)
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
	victim := b.ending(1)[0]
	b.until("to be nominated", "high-0", func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == "n1" })
	b.addPods("again", "gpu.cleave.dev", 1, priority("low"))
	b.waits("again-0")
	b.gone(victim)
	b.addPods("more", "gpu.cleave.dev", 1, priority("low")) // an attempt after the end
	b.waits("more-0")
	b.free(victim)
	b.running("high-0")
	b.waits("more-0")
	if names, err := b.evicted(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("pods %v are evicted, too (%v)", names, err)
	}
	if b.gpus(); len(b.results()) != 8 {
		t.Errorf("%d devices are allocated, want 8", len(b.results()))
	}
	b.told("high-0", "PreemptsForDevices", "Evicts pods default/"+victim+" on node n1; gets devices gpu-")
	b.told(victim, "PreemptedForDevices", "to make room for pod default/high-0 of priority 1000")
}

// told waits for an Event of a pod.
func (b priorityBed) told(pod, reason, text string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err := workload.Until(ctx, fmt.Sprintf("Event %s of pod %s", reason, pod), func(ctx context.Context) (bool, string, error) {
		all, err := b.kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		var notes []string
		for i := range all.Items {
			if e := &all.Items[i]; e.Regarding.Name == pod {
				notes = append(notes, e.Reason+": "+e.Note)
				if e.Reason == reason && strings.Contains(e.Note, text) {
					return true, "", nil
				}
			}
		}
		return false, strings.Join(notes, "\n"), nil
	})
	must(b.t, err)
}
