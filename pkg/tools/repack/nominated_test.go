// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAdvise_Nominated: cleave-scheduler keeps what victims leave on a node for the pod that is nominated for it, and gives it to no
// replacement. So nobody is restarted to go there.
func TestAdvise_Nominated(t *testing.T) {
	for name, tt := range map[string]struct {
		node  string
		asks  bool
		steps int
	}{
		"nowhere":                    {"", true, 1},
		"where the replacement goes": {"gpu-1", true, 0},
		"where the pod is":           {"gpu-2", true, 0},
		"for no devices":             {"gpu-1", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := scattered(t)
			urgent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "urgent"}}
			urgent.Status.NominatedNodeName = tt.node
			if tt.asks {
				urgent.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
			}
			b.pods = append(b.pods, urgent)
			if a := b.advise(); len(a.Steps) != tt.steps || a.WholeNow != 14 {
				t.Errorf("%d steps, %d GPUs are whole, want %d and 14", len(a.Steps), a.WholeNow, tt.steps)
			}
		})
	}
}
