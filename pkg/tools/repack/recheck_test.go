// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// TestRecheck: a step holds in the cluster that it was planned for, and says why it does not in others.
func TestRecheck(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*bed)
		why    string
	}{
		"same": {func(*bed) {}, ""},
		"budget that refuses now": {func(b *bed) {
			b.o.Budgets = []*policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "all"},
				Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}}}
		}, ""},
		"node tainted by the repack": {func(b *bed) {
			b.o.Nodes[1].Spec.Taints = []corev1.Taint{{Key: v1alpha1.RepackKey, Effect: corev1.TaintEffectNoSchedule}}
		}, ""},
		"pod gone":    {func(b *bed) { b.end(3) }, "the pods on gpu-2 gpu-0000-1b-00-0 are not those that were advised"},
		"another pod": {func(b *bed) { b.pod("more", "gpu-2", small, 1) }, "are not those that were advised"},
		"marked": {func(b *bed) { b.pods[3].Annotations = map[string]string{v1alpha1.RepackKey: v1alpha1.RepackNever} },
			"pod ml/stray may not be restarted anymore"},
		"pod created again": {func(b *bed) {
			b.pods[3].UID = "new"
			b.o.Claims[3].Status.ReservedFor[0].UID, b.o.Claims[3].OwnerReferences[0].UID = "new", "new"
		}, "are not those that were advised"},
		"node is away": {func(b *bed) { b.o.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown }, "are not those that were advised"},
		"place is taken": {func(b *bed) { b.pod("more", "gpu-1", small, 1) },
			"the replacement of pod ml/stray would be at gpu-1 gpu-0000-1b-00-0-mig-19-2 now, gpu-1 gpu-0000-1b-00-0-mig-19-3 was advised"},
		"no room": {func(b *bed) { b.o.Nodes[0].Spec.Unschedulable = true }, "the replacements would no longer leave gpu-0000-1b-00-0 of node gpu-2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := scattered(t)
			step := b.advise().Steps[0]
			tt.change(b)
			now, why := b.cluster().Recheck(t.Context(), step)
			if tt.why == "" {
				if diff := cmp.Diff(step, now); diff != "" || why != "" {
					t.Errorf("%s (-planned +now):\n%s", why, diff)
				}
			} else if !strings.Contains(why, tt.why) {
				t.Errorf("got %q, want %q", why, tt.why)
			}
		})
	}
}

// TestMoving: pods that are evicted or scheduled right now have no place that can be planned with. One that was not for long waits for
// something else, such as a claim that does not exist, or a node that is away.
func TestMoving(t *testing.T) {
	now := metav1.NewTime(time.Unix(10_000, 0))
	long := metav1.NewTime(now.Add(-time.Hour))
	b := scattered(t)
	evicted := []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: evictionReason}}
	b.pods[0].DeletionTimestamp = &now // deleted by somebody
	b.pods[1].DeletionTimestamp, b.pods[1].Status.Conditions = &now, evicted
	b.pods[2].DeletionTimestamp, b.pods[2].Status.Conditions = &long, evicted
	for name, reason := range map[string]string{
		"undecided": "", "never tried": "", "unschedulable": corev1.PodReasonUnschedulable, "gated": corev1.PodReasonSchedulingGated,
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, CreationTimestamp: now}}
		if name == "never tried" {
			p.CreationTimestamp = long
		}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		if reason != "" {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason}}
		}
		b.pods = append(b.pods, p)
	}
	for name, extended := range map[string]corev1.ResourceName{ // the scheduler creates their claims
		"extended": "nvidia.com/gpu", "by class": "deviceclass.resource.kubernetes.io/gpu.cleave.dev", "of a device plugin": "example.com/gpu",
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, CreationTimestamp: now}}
		requests := corev1.ResourceList{extended: resource.MustParse("1")}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
		b.pods = append(b.pods, p)
	}
	b.o.Nodes[0].Spec.Taints = []corev1.Taint{{Key: v1alpha1.RepackKey, Effect: corev1.TaintEffectNoSchedule}, {Key: "other"}}
	c := b.cluster()
	if diff := cmp.Diff([]string{"ml/b", "ml/by class", "ml/extended", "ml/undecided"}, c.Moving(now.Add(-time.Minute))); diff != "" {
		t.Errorf("moving (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"gpu-1"}, c.Tainted()); diff != "" || len(b.o.Nodes[0].Spec.Taints) != 2 {
		t.Errorf("tainted (-want +got):\n%s", diff)
	}
}
