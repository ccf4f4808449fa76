// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMoving_Nominated: while the last of its victims ends, cleave-scheduler keeps what the others left for a pod that is nominated, and
// gives it to no replacement. So nobody can plan with it.
func TestMoving_Nominated(t *testing.T) {
	now := metav1.NewTime(time.Unix(10_000, 0))
	b := scattered(t)
	victim := b.pods[0]
	victim.DeletionTimestamp, victim.Status.Conditions = &now, []corev1.PodCondition{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler}}
	urgent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "urgent", CreationTimestamp: now}}
	urgent.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	urgent.Status.NominatedNodeName = "gpu-1"
	urgent.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	b.pods = append(b.pods, urgent)
	if diff := cmp.Diff([]string{"ml/urgent"}, b.cluster().Moving(now.Add(-time.Minute))); diff != "" {
		t.Errorf("moving (-want +got):\n%s", diff)
	}
}
