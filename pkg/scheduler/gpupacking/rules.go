// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rules say which pods may be evicted, besides those of a lower priority. Times are by PriorityClass.
type Rules struct {
	// MinRuntime is for how long a pod is safe after its start.
	MinRuntime map[string]metav1.Duration `json:"minRuntime"`
	// MaxRuntime is how long after its start pods of the same priority may take its place; never where there is none.
	MaxRuntime map[string]metav1.Duration `json:"maxRuntime"`
}

// Evictable reports whether a pod may be evicted for one of a priority, and if not, when it may be; zero for never. Its own
// priority is that of its group, if it is of one.
func (r *Rules) Evictable(victim *corev1.Pod, own, preemptor int32, now time.Time) (ok bool, at time.Time) {
	start := startedAt(victim, now)
	least, most := r.MinRuntime[victim.Spec.PriorityClassName].Duration, r.MaxRuntime[victim.Spec.PriorityClassName].Duration
	switch {
	case own < preemptor && preemptor >= systemPriority:
		return true, now
	case own < preemptor:
		at = start.Add(least)
	case own == preemptor && most > 0:
		at = start.Add(max(least, most))
	default:
		return false, time.Time{}
	}
	return !now.Before(at), at
}

// Validate checks times.
func (r *Rules) Validate() error {
	return cmp.Or(validate("minRuntime", r.MinRuntime), validate("maxRuntime", r.MaxRuntime))
}

func validate(field string, times map[string]metav1.Duration) error {
	for _, class := range slices.Sorted(maps.Keys(times)) {
		if times[class].Duration <= 0 {
			return fmt.Errorf("%s[%s] is %s, want a time above zero, such as 30m", field, class, times[class].Duration)
		}
	}
	return nil
}

// systemPriority is the least of pods that the cluster needs (k8s.io/kubernetes/pkg/apis/scheduling, SystemCriticalPriority). They wait
// for nobody.
const systemPriority = 2_000_000_000

// startedAt is when a pod started. The kubelet says so some time after the pod got its node, and a pod may wait for long before that.
func startedAt(pod *corev1.Pod, now time.Time) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return now
}
