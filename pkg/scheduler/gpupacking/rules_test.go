// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRules_Evictable: when pods may be evicted.
func TestRules_Evictable(t *testing.T) {
	now := time.Now()
	rules := &Rules{MinRuntime: map[string]metav1.Duration{"batch": {Duration: time.Hour}, "both": {Duration: 2 * time.Hour}},
		MaxRuntime: map[string]metav1.Duration{"backfill": {Duration: 4 * time.Hour}, "both": {Duration: time.Hour}}}
	for _, c := range []struct {
		class          string
		own, preemptor int32
		age            time.Duration
		ok             bool
		in             time.Duration // from now; 0 for never
	}{
		{"", 0, 1, 0, true, 0},
		{"", 0, 0, 100 * time.Hour, false, 0},
		{"", 1, 0, 100 * time.Hour, false, 0},
		{"batch", 0, 1, 20 * time.Minute, false, 40 * time.Minute},
		{"batch", 0, 1, time.Hour, true, 0},
		{"batch", 0, 0, 100 * time.Hour, false, 0},
		{"backfill", 0, 1, 0, true, 0},
		{"backfill", 0, 0, 3 * time.Hour, false, time.Hour},
		{"backfill", 0, 0, 4 * time.Hour, true, 0},
		{"backfill", 1, 0, 100 * time.Hour, false, 0},
		{"both", 0, 0, 90 * time.Minute, false, 30 * time.Minute},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(c.class)}, Spec: corev1.PodSpec{PriorityClassName: c.class}}
		pod.Status.StartTime = &metav1.Time{Time: now.Add(-c.age)}
		ok, at := rules.Evictable(pod, c.own, c.preemptor, now)
		if ok != c.ok {
			t.Errorf("%+v: evictable %t", c, ok)
		}
		if !ok && (c.in == 0) != at.IsZero() || !ok && c.in > 0 && at.Sub(now) != c.in {
			t.Errorf("%+v: in %s", c, at.Sub(now))
		}
	}
	waited := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-5 * time.Hour))}}
	for _, class := range []string{"batch", "backfill"} { // bound just now: the kubelet has not written a start time yet
		waited.Spec.PriorityClassName = class
		if ok, _ := rules.Evictable(waited, 0, map[string]int32{"batch": 1, "backfill": 0}[class], now); ok {
			t.Errorf("a pod of %s that waited for long is not safe when it starts", class)
		}
	}
	waited.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now.Add(-4 * time.Hour))}}
	if ok, _ := rules.Evictable(waited, 0, 0, now); !ok {
		t.Error("a pod of the backfill that got its node 4 hours ago may not be evicted")
	}
	if ok, _ := rules.Evictable(waited, 0, systemPriority, now); !ok {
		t.Error("a pod of the system has to wait")
	}
	bad := &Rules{MaxRuntime: map[string]metav1.Duration{"x": {}}}
	if err := bad.Validate(); err == nil || err.Error() != "maxRuntime[x] is 0s, want a time above zero, such as 30m" {
		t.Errorf("a time of zero: %v", err)
	}
}
