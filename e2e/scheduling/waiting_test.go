// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// until waits for something of a pod.
func (b *bed) until(what, name string, done func(*corev1.Pod) bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	client := workload.Client{Kube: b.kube}
	_, err := client.WaitPod(ctx, namespace, name, what, func(pod *corev1.Pod) (bool, error) { return done(pod), nil })
	if err != nil {
		b.t.Fatalf("%v; the scheduler's log ends with:\n%s", err, b.scheduler.LogTail(20))
	}
}

// waits is until the scheduler has found no node for a pod.
func (b *bed) waits(name string) {
	b.t.Helper()
	b.until("to find no node", name, func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return true
			}
		}
		return false
	})
}

func requests(cpu, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
}

// TestScheduler_ReplicaSet: that the replicas of a set should be apart, and that the node fills up, counts less than GPUs.
func TestScheduler_ReplicaSet(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3", "n4")
	b.startScheduler("{}")
	app := map[string]string{"app": "small"}
	set, err := b.kube.AppsV1().ReplicaSets(namespace).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: app}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	b.addPods("small", "mig-1g.10gb.cleave.dev", 50, requests("2", "16Gi"), func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	})
	got := b.scheduled(50)
	if len(got) != 1 {
		t.Errorf("50 replicas of 56 that fit on a node are on %v", got)
	}
}

// TestScheduler_Preempts: the node with free GPUs has no CPU left, and the one with CPU no GPUs. Pods of low priority have to
// go, as with kube-scheduler.
func TestScheduler_Preempts(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	b.addPods("gpus", "gpu.cleave.dev", 8, onNode("n1"))
	b.addPods("cpu", "gpu.cleave.dev", 1, onNode("n2"), requests("120", "1Gi"), priority("low"))
	b.scheduled(9)
	b.addPods("high", "gpu.cleave.dev", 1, requests("100", "1Gi"), priority("high"))
	b.until("to be evicted", "cpu-0", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	b.gone("cpu-0")
	if diff := cmp.Diff(map[string]int{"n1": 8, "n2": 1}, b.scheduled(9)); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// TestScheduler_Wakes: pods that wait get their node when a toleration, a taint or an ended claim gives them one, not when the
// scheduler next tries all (5 min).
func TestScheduler_Wakes(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3")
	b.taint("n2", corev1.Taint{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule})
	b.taint("n3", corev1.Taint{Key: "upkeep", Effect: corev1.TaintEffectNoSchedule})
	b.startScheduler("{}")
	b.addPods("whole", "gpu.cleave.dev", 8)
	b.scheduled(8)
	for _, name := range []string{"tolerant", "other", "patient"} {
		b.addPods(name, "gpu.cleave.dev", 1)
		b.waits(name + "-0")
	}
	pods := b.kube.CoreV1().Pods(namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // the scheduler writes conditions
		pod, err := pods.Get(t.Context(), "tolerant-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "team", Operator: corev1.TolerationOpExists})
		_, err = pods.Update(t.Context(), pod, metav1.UpdateOptions{})
		return err
	})
	must(t, err)
	if got := b.scheduled(9); got["n2"] != 1 {
		t.Errorf("with a toleration: %v", got)
	}
	b.taint("n3")
	if got := b.scheduled(11); got["n3"] != 2 {
		t.Errorf("without the taint: %v", got)
	}
	b.addPods("more", "gpu.cleave.dev", 7)
	b.scheduled(17)
	b.until("to wait", "more-6", func(p *corev1.Pod) bool { return len(p.Status.Conditions) > 0 })
	b.free("whole-3")
	if got := b.scheduled(18); got["n1"] != 9 {
		t.Errorf("with a GPU that is free again: %v", got)
	}
	b.gpus()
}

// taint replaces the taints of a node.
func (b *bed) taint(name string, taints ...corev1.Taint) {
	b.t.Helper()
	node, err := b.kube.CoreV1().Nodes().Get(b.t.Context(), name, metav1.GetOptions{})
	must(b.t, err)
	node.Spec.Taints = taints
	must(b.t, errOf(b.kube.CoreV1().Nodes().Update(b.t.Context(), node, metav1.UpdateOptions{})))
}

// TestPreemption_WokenToEvict: a pod needs two GPUs. A pod of the same priority ends, which makes room only together with an eviction.
func TestPreemption_WokenToEvict(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("other", "gpu.cleave.dev", 7, priority("high"))
	b.addPods("low", "gpu.cleave.dev", 1, priority("low"), graceful)
	b.scheduled(8)
	b.addPodOf("patient", workload.ClaimSpec("gpu.cleave.dev", 2), priority("patient")) // for it, the allocator is asked on all nodes
	b.waits("patient")
	b.addPodOf("urgent", workload.ClaimSpec("gpu.cleave.dev", 2), priority("high"))
	b.waits("urgent")
	b.gone("other-3")
	b.free("other-3")
	allOf(t, b.evictedFor("urgent", 1), "low")
}

// TestPreemption_TaintRemoved: the node on which a pod may evict others was away.
func TestPreemption_TaintRemoved(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	b.addPods("other", "gpu.cleave.dev", 8, priority("high"), onNode("n1"))
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n2"))
	b.scheduled(16)
	b.taint("n2", corev1.Taint{Key: "upkeep", Effect: corev1.TaintEffectNoSchedule})
	b.addPods("patient", "gpu.cleave.dev", 1, priority("patient")) // for it, the allocator is asked on all nodes
	b.waits("patient-0")
	b.addPods("urgent", "gpu.cleave.dev", 1, priority("high"))
	b.waits("urgent-0")
	b.none()
	b.taint("n2")
	allOf(t, b.evictedFor("urgent-0", 1), "low")
}

// TestPreemption_TaintedAfterNomination: the node that a pod is nominated for gets a taint after its victim has gone, before the claim is
// deallocated. The nomination is taken away, and what the victim left is for pods that tolerate the taint.
func TestPreemption_TaintedAfterNomination(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n1"))
	b.addPods("other", "gpu.cleave.dev", 8, priority("high"), onNode("n2"))
	b.scheduled(16)
	b.addPods("urgent", "gpu.cleave.dev", 1, priority("high"))
	victim := b.ending(1)[0]
	b.nominated("urgent-0", "n1")
	b.addPods("patient", "gpu.cleave.dev", 1, priority("patient")) // for it, the allocator is asked on all nodes
	b.waits("patient-0")
	b.gone(victim)
	b.taint("n1", corev1.Taint{Key: "upkeep", Effect: corev1.TaintEffectNoSchedule})
	b.addPods("tolerant", "gpu.cleave.dev", 1, priority("low"), func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "upkeep", Operator: corev1.TolerationOpExists}}
	})
	b.waits("tolerant-0")
	b.free(victim)
	b.nominated("urgent-0", "")
	b.running("tolerant-0")
	b.waits("urgent-0")
	b.none()
}

// TestPreemption_ClaimDeleted: the claim of a pod is deleted while its victim ends. The pod is not tried without it, and what the victim left is
// for others.
func TestPreemption_ClaimDeleted(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful)
	b.scheduled(8)
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
	victim := b.ending(1)[0]
	b.nominated("high-0", "n1")
	must(t, b.kube.ResourceV1().ResourceClaims(namespace).Delete(t.Context(), "high-0", metav1.DeleteOptions{}))
	b.addPods("again", "gpu.cleave.dev", 1, priority("low"))
	b.waits("again-0")
	b.gone(victim)
	b.free(victim)
	b.running("again-0")
}
