// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// nominated waits until a pod is nominated for a node.
func (b priorityBed) nominated(name, node string) {
	b.t.Helper()
	b.until("to be nominated for "+node, name, func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == node })
}

// TestPreemption_Leftover: what a victim leaves beyond what the pod needs is for others, who are told. Otherwise they would be tried in 5
// minutes.
func TestPreemption_Leftover(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPodOf("big", workload.ClaimSpec("gpu.cleave.dev", 8), priority("low"), graceful)
	b.running("big")
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
	b.ending(1)
	b.addPods("again", "gpu.cleave.dev", 3, priority("low"))
	for i := range 3 {
		b.waits(fmt.Sprint("again-", i))
	}
	b.gone("big")
	b.free("big")
	b.running("high-0")
	for i := range 3 {
		b.running(fmt.Sprint("again-", i))
	}
	b.gpus()
}

// TestPreemption_DeletedPreemptor: of two victims one has gone when the pod is deleted. What it left is for others.
func TestPreemption_DeletedPreemptor(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful)
	b.scheduled(8)
	b.addPodOf("high", workload.ClaimSpec("gpu.cleave.dev", 2), priority("high"))
	victims := b.ending(2)
	b.gone(victims[0])
	b.free(victims[0])
	b.addPods("again", "gpu.cleave.dev", 1, priority("low"))
	b.waits("again-0")
	must(t, b.kube.CoreV1().Pods(namespace).Delete(t.Context(), "high", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	b.running("again-0")
}

// TestPreemption_EndsAnyway: a pod that a user has deleted is no victim, whatever it has.
func TestPreemption_EndsAnyway(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	b.addPods("first", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n1"))
	b.addPods("second", "mig-1g.10gb.cleave.dev", 56, priority("low"), graceful, onNode("n2"))
	b.scheduled(64)
	must(t, b.kube.CoreV1().Pods(namespace).Delete(t.Context(), "first-0", metav1.DeleteOptions{}))
	b.addPods("high", "mig-1g.10gb.cleave.dev", 1, priority("high"))
	b.nominated("high-0", "n1")
	b.told("high-0", "PreemptsForDevices", "Waits for pods default/first-0 on node n1, which end anyway; gets devices gpu-")
	if names := b.evictedFor("high-0", 1); names[0] != "first-0" {
		t.Errorf("ended is %s, want first-0", names[0])
	}
	b.none()
}

// TestPreemption_GoneAnyway: a pod of n1 has gone, one of many that may be evicted or the only one, and its claim is not deallocated yet.
// Nobody has to go on another node.
func TestPreemption_GoneAnyway(t *testing.T) {
	for name, rest := range map[string]string{"one of many": "low", "the only one": "high"} {
		t.Run(name, func(t *testing.T) {
			b := newPriorityBed(t, "n1", "n2")
			b.startScheduler("{}")
			b.addPods("rest", "gpu.cleave.dev", 7, priority(rest), graceful, onNode("n1"))
			b.addPods("first", "gpu.cleave.dev", 1, priority("low"), graceful, onNode("n1"))
			b.addPods("second", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n2"))
			b.scheduled(16)
			b.gone("first-0")
			b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
			b.nominated("high-0", "n1")
			b.none()
			b.free("first-0")
			b.running("high-0")
			b.none()
		})
	}
}

// TestPreemption_EndsBesideBusy: a pod of n1 ends because a user has deleted it, and n2 has free GPUs and no CPU left. Nobody has to go
// there, whether n1 has CPU or the pod that ends frees it, too.
func TestPreemption_EndsBesideBusy(t *testing.T) {
	for name, cpu := range map[string]string{"has CPU": "1", "frees CPU, too": "16"} {
		t.Run(name, func(t *testing.T) {
			b := newPriorityBed(t, "n1", "n2")
			b.startScheduler("{}")
			b.addPods("first", "gpu.cleave.dev", 8, priority("low"), graceful, onNode("n1"), requests(cpu, "1Gi"))
			b.addPods("cpu", "gpu.cleave.dev", 1, priority("low"), graceful, onNode("n2"), requests("120", "1Gi"))
			b.scheduled(9)
			b.addPods("patient", "gpu.cleave.dev", 1, priority("patient"), requests("16", "1Gi")) // for it, the allocator is asked on all nodes
			b.waits("patient-0")
			must(t, b.kube.CoreV1().Pods(namespace).Delete(t.Context(), "first-0", metav1.DeleteOptions{}))
			b.addPods("high", "gpu.cleave.dev", 1, priority("high"), requests("16", "1Gi"))
			b.nominated("high-0", "n1")
			if names := b.evictedFor("high-0", 1); names[0] != "first-0" {
				t.Errorf("ended is %s, want first-0", names[0])
			}
			b.none()
		})
	}
}

// TestPreemption_Patient: while one of two victims ends, the scheduler does not try the pod over and over.
func TestPreemption_Patient(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2", "n3", "n4", "n5", "n6")
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 48, priority("low"), graceful)
	b.scheduled(48)
	b.addPodOf("high", workload.ClaimSpec("gpu.cleave.dev", 2), priority("high"))
	victims := b.ending(2)
	b.gone(victims[0])
	b.free(victims[0])
	attempts := func() (n int) {
		for _, l := range lines(b.bed, "Compared nodes") {
			if strings.Contains(l, "default/high") {
				n++
			}
		}
		return n
	}
	for i := range 10 { // each takes the scheduler some time, in which it might try the other
		name := fmt.Sprint("other", i)
		b.addPods(name, "gpu.cleave.dev", 1, priority("low"))
		b.waits(name + "-0")
	}
	if n := attempts(); n > 10 {
		t.Errorf("%d attempts while the second victim ends", n)
	}
	b.gone(victims[1])
	b.free(victims[1])
	b.running("high")
	b.none()
}

// TestPreemption_WithoutClaims: for pods without claims, all nodes are compared, as by kube-scheduler.
func TestPreemption_WithoutClaims(t *testing.T) {
	var nodes []string
	for i := range 40 {
		nodes = append(nodes, fmt.Sprint("n", i))
	}
	b := newPriorityBed(t, nodes...)
	b.startScheduler("{}")
	add := func(name, cpu, class string, change ...func(*corev1.Pod)) {
		pod := podWith()
		pod.Name, pod.Spec.PriorityClassName = name, class
		for _, c := range append(change, requests(cpu, "1Gi"), graceful) {
			c(pod)
		}
		must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})))
	}
	for i, n := range nodes {
		class := "middle"
		if i == 17 {
			class = "low"
		}
		add(fmt.Sprint("cpu-", i), "120", class, onNode(n))
	}
	b.scheduled(40)
	add("high", "100", "high")
	if got := b.ending(1); got[0] != "cpu-17" {
		t.Errorf("evicted is %s, want the pod of the lowest priority", got[0])
	}
}
