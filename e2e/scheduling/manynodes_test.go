// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// TestPreemption_ClaimElsewhere: a pod names a claim with a device of one node of many, which lacks only CPU. kube-scheduler evicts pods
// there: on other nodes, preemption does not help.
func TestPreemption_ClaimElsewhere(t *testing.T) {
	names := []string{"gpu-1"}
	b := newPriorityBed(t, names...)
	for i := range 600 {
		b.addNode(fmt.Sprint("cpu-", i))
	}
	b.startScheduler("{}")
	b.addPods("first", "gpu.cleave.dev", 1, priority("high"))
	b.running("first-0")
	filler := podWith()
	filler.Name, filler.Spec.PriorityClassName = "filler", "low"
	graceful(filler)
	onNode("gpu-1")(filler)
	requests("120", "1Gi")(filler)
	must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), filler, metav1.CreateOptions{})))
	b.running("filler")
	for i := range 6 {
		urgent := podWith(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: new("first-0")})
		urgent.Name, urgent.Spec.PriorityClassName = fmt.Sprint("urgent-", i), "high"
		urgent.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20")}
		must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), urgent, metav1.CreateOptions{})))
		b.until("to be refused", urgent.Name, func(p *corev1.Pod) bool { return len(p.Status.Conditions) > 0 })
		pod, err := b.kube.CoreV1().Pods(namespace).Get(t.Context(), urgent.Name, metav1.GetOptions{})
		must(t, err)
		if pod.Status.NominatedNodeName == "" {
			t.Errorf("pod %s is not nominated: %s", pod.Name, pod.Status.Conditions[0].Message)
		}
		must(t, b.kube.CoreV1().Pods(namespace).Delete(t.Context(), urgent.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		if evicted, err := b.evicted(t.Context()); err == nil && len(evicted) > 0 {
			return
		}
	}
}

// TestPreemption_AllDevices: one node of many has GPUs. What a pod with all of them needs only the allocator can say.
func TestPreemption_AllDevices(t *testing.T) {
	b := newPriorityBed(t, "gpu-1")
	for i := range 600 {
		b.addNode(fmt.Sprint("cpu-", i))
	}
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful)
	b.scheduled(8)
	spec := workload.ClaimSpec("gpu.cleave.dev", 1)
	spec.Devices.Requests[0].Exactly.AllocationMode, spec.Devices.Requests[0].Exactly.Count = resourceapi.DeviceAllocationModeAll, 0
	b.addPodOf("urgent", spec, priority("high"))
	b.nominated("urgent", "gpu-1")
}
