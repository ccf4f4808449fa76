// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// allocatedTwice gives the same GPU to the pods first and late, as two schedulers may, and lets the node prepare it for the first.
func (b priorityBed) allocatedTwice(change func(late *corev1.Pod)) {
	b.t.Helper()
	device := wholeGPUs(b.bed, "n1")[0]
	for _, name := range []string{"first", "late"} {
		b.addPods(name, "gpu.cleave.dev", 1, onNode("n1"), graceful, func(p *corev1.Pod) {
			p.Spec.SchedulerName, p.Spec.NodeName = "other", "n1"
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: "1", Controller: new(true)}}
			if name == "late" {
				change(p)
			}
		})
		name += "-0"
		pods, claims := b.kube.CoreV1().Pods(namespace), b.kube.ResourceV1().ResourceClaims(namespace)
		pod, err := pods.Get(b.t.Context(), name, metav1.GetOptions{})
		must(b.t, err)
		pod.Status.Phase = corev1.PodPending
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute))}}
		must(b.t, errOf(pods.UpdateStatus(b.t.Context(), pod, metav1.UpdateOptions{})))
		claim, err := claims.Get(b.t.Context(), name, metav1.GetOptions{})
		must(b.t, err)
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID, Controller: new(true)}}
		claim, err = claims.Update(b.t.Context(), claim, metav1.UpdateOptions{}) // as one of a template
		must(b.t, err)
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.cleave.dev", Pool: "n1", Device: device}},
		}}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
		must(b.t, errOf(claims.UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{})))
	}
	claim, err := b.kube.ResourceV1().ResourceClaims(namespace).Get(b.t.Context(), "first-0", metav1.GetOptions{})
	must(b.t, err)
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "gpu.cleave.dev", Pool: "n1", Device: device, Conditions: []metav1.Condition{{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Prepared", LastTransitionTime: metav1.Now(),
	}}}}
	must(b.t, errOf(b.kube.ResourceV1().ResourceClaims(namespace).UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{})))
}

// TestCollision: of two pods that were given one GPU by others, the one that cannot start is evicted. The other stays.
func TestCollision(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.startKubeScheduler(cluster.DefaultVersion, nil)
	b.startScheduler("{}")
	b.allocatedTwice(func(*corev1.Pod) {})
	b.until("to be evicted", "late-0", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	b.told("late-0", "AllocatedTwice", "claim default/first-0 has them, too")
	pod, err := b.kube.CoreV1().Pods(namespace).Get(t.Context(), "late-0", metav1.GetOptions{})
	must(t, err)
	targeted := false
	for _, c := range pod.Status.Conditions {
		targeted = targeted || c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "AllocatedTwice"
	}
	if !targeted {
		t.Errorf("conditions %+v, want one of a disruption", pod.Status.Conditions)
	}
	first, err := b.kube.CoreV1().Pods(namespace).Get(t.Context(), "first-0", metav1.GetOptions{})
	if err != nil || first.DeletionTimestamp != nil {
		t.Errorf("the pod that has the GPU is evicted, too (%v)", err)
	}
	// kube-scheduler takes the device for free once one of its claims is gone.
	b.gone("late-0")
	must(t, b.kube.ResourceV1().ResourceClaims(namespace).Delete(t.Context(), "late-0", metav1.DeleteOptions{}))
	b.addPods("again", "gpu.cleave.dev", 8, func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName })
	for i := range 8 {
		b.until("to be tried", fmt.Sprint("again-", i), func(p *corev1.Pod) bool {
			return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
		})
	}
	if b.gpus(); len(b.results()) != 8 { // gpus fails where a GPU has two claims
		t.Errorf("%d GPUs of 8 are allocated", len(b.results()))
	}
	b.free("first-0")
	must(t, workload.Until(t.Context(), "the rule of the device to go", func(ctx context.Context) (bool, string, error) {
		rules, err := b.kube.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{})
		return err == nil && len(rules.Items) == 0, "", err
	}))
}

// TestCollision_Bare: a pod that nobody would make again is told, and stays.
func TestCollision_Bare(t *testing.T) {
	b := newPriorityBed(t, "n1")
	b.allocatedTwice(func(late *corev1.Pod) { late.OwnerReferences = nil })
	b.startScheduler("{}") // which finds it all there
	b.told("late-0", "AllocatedTwice", "Delete the pod and create it again")
	late, err := b.kube.CoreV1().Pods(namespace).Get(t.Context(), "late-0", metav1.GetOptions{})
	if err != nil || late.DeletionTimestamp != nil {
		t.Errorf("a pod without a controller is evicted (%v)", err)
	}
}
