// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// leaves is what the controller of claims does after a pod of a claim that others still use.
func leaves(b *bed, pod, claimName string) {
	b.t.Helper()
	claims := b.kube.ResourceV1().ResourceClaims(namespace)
	claim, err := claims.Get(b.t.Context(), claimName, metav1.GetOptions{})
	must(b.t, err)
	var kept []resourceapi.ResourceClaimConsumerReference
	for _, r := range claim.Status.ReservedFor {
		if r.Name != pod {
			kept = append(kept, r)
		}
	}
	claim.Status.ReservedFor = kept
	if len(kept) == 0 {
		claim.Status.Allocation = nil
	}
	must(b.t, errOf(claims.UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{})))
}

// addClaim creates a claim for a GPU.
func addClaim(b *bed, name string) {
	b.t.Helper()
	must(b.t, errOf(b.kube.ResourceV1().ResourceClaims(namespace).Create(b.t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: workload.ClaimSpec("gpu.cleave.dev", 1)}, metav1.CreateOptions{})))
}

// TestPreemption_OneClaim: urgent pods share a claim. One of them evicts a pod, and all run when that has ended.
func TestPreemption_OneClaim(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 16, priority("low"), graceful)
	b.scheduled(16)
	addClaim(b.bed, "shared")
	urgent := []string{"first", "second", "third"}
	for _, name := range urgent {
		pod := podWith(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: new("shared")})
		pod.Name, pod.Spec.PriorityClassName = name, "high"
		must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})))
	}
	for _, name := range urgent {
		b.waits(name)
	}
	victim := b.ending(1)[0]
	b.gone(victim)
	b.free(victim)
	for _, name := range urgent {
		b.running(name)
	}
	b.none()
}

// TestPreemption_NamedClaim: the pod of a ReplicaSet whose template names a claim is evicted. Its replacement, which comes as soon as it
// ends, must not take the claim over: the claim would never be free, and the replacement would be evicted in turn, and so on.
func TestPreemption_NamedClaim(t *testing.T) {
	b := newPriorityBed(t, "n1", "n2")
	b.startScheduler("{}")
	b.addPods("other", "gpu.cleave.dev", 7, priority("high"), onNode("n1"))
	b.addPods("far", "gpu.cleave.dev", 8, priority("high"), onNode("n2"))
	addClaim(b.bed, "shared")
	replica := func(i int) string {
		pod := podWith(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: new("shared")})
		pod.Name, pod.Labels, pod.Spec.PriorityClassName = fmt.Sprint("web-", i), map[string]string{"app": "web"}, "low"
		graceful(pod)
		onNode("n1")(pod)
		must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})))
		return pod.Name
	}
	replica(0)
	b.scheduled(16)
	b.addPods("urgent", "gpu.cleave.dev", 1, priority("high"), onNode("n1"))
	for i := range 3 {
		victim := b.ending(1)[0]
		next := replica(i + 1) // as a ReplicaSet does
		b.until("to be tried", next, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" || len(p.Status.Conditions) > 0 })
		pod, err := b.kube.CoreV1().Pods(namespace).Get(t.Context(), next, metav1.GetOptions{})
		must(t, err)
		if pod.Spec.NodeName != "" {
			t.Errorf("%s was evicted for urgent-0, and its replacement %s has its claim", victim, next)
		}
		b.gone(victim)
		leaves(b.bed, victim, "shared")
		if pod.Spec.NodeName == "" {
			b.running("urgent-0")
			return
		}
		b.gone(fmt.Sprint("far-", i)) // any claim that ends has the urgent pod tried again
		b.free(fmt.Sprint("far-", i))
	}
	pod, err := b.kube.CoreV1().Pods(namespace).Get(t.Context(), "urgent-0", metav1.GetOptions{})
	must(t, err)
	t.Errorf("after three evictions, urgent-0 has node %q", pod.Spec.NodeName)
}

// owned makes a claim that of its pod, as one of a template is.
func owned(b *bed, name string) {
	b.t.Helper()
	pod, err := b.kube.CoreV1().Pods(namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	must(b.t, err)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID, Controller: new(true)}}}})
	must(b.t, err)
	must(b.t, errOf(b.kube.ResourceV1().ResourceClaims(namespace).Patch(b.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})))
}

// TestPreemption_Binding: the least important pod has its device, and waits for its volume before it gets its node. It goes, and nobody
// else.
func TestPreemption_Binding(t *testing.T) {
	b := newPriorityBed(t, "n1")
	addLocalClass(b.bed)
	localVolume(b.bed, "low", "n1")
	b.startScheduler("{}")
	b.addPods("other", "gpu.cleave.dev", 6, priority("high"))
	b.addPods("middle", "gpu.cleave.dev", 1, priority("middle"), graceful)
	b.scheduled(7)
	b.addPodOf("low", workload.ClaimSpec("gpu.cleave.dev", 1), priority("low"), withLocalVolume(b.bed, "low"))
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	must(t, workload.Until(ctx, "claim low to be allocated", func(ctx context.Context) (bool, string, error) {
		claim, err := b.kube.ResourceV1().ResourceClaims(namespace).Get(ctx, "low", metav1.GetOptions{})
		return err == nil && claim.Status.Allocation != nil, "", err
	}))
	owned(b.bed, "low")
	b.addPods("urgent", "gpu.cleave.dev", 1, priority("high"))
	must(t, workload.Until(ctx, "a pod to be evicted", func(ctx context.Context) (bool, string, error) {
		middle, err := b.kube.CoreV1().Pods(namespace).Get(ctx, "middle-0", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		if middle.DeletionTimestamp != nil {
			t.Errorf("middle-0 is evicted; the scheduler says of low:\n%s", strings.Join(lines(b.bed, `pod="default/low"`), ""))
			for _, text := range []string{"Preemptor rejected a pod in preBind", "preempted victim"} {
				t.Log(strings.Join(lines(b.bed, text), ""))
			}
			return true, "", nil
		}
		claim, err := b.kube.ResourceV1().ResourceClaims(namespace).Get(ctx, "low", metav1.GetOptions{})
		return err == nil && claim.Status.Allocation == nil, "", err
	}))
}
