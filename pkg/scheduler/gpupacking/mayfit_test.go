// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"
)

// TestEvents_MayEvict: an event after which a pod may evict others wakes it, although nothing fits without an eviction.
func TestEvents_MayEvict(t *testing.T) {
	t.Run("a claim of an important pod ends", func(t *testing.T) {
		b := preemptingBed(t, &Rules{})
		b.addNodes("hgx-h100", "n1")
		for i := range 7 {
			b.run("n1", fmt.Sprint("important-", i), "gpu", 1000)
		}
		b.run("n1", "low", "gpu", -1000)
		urgent := b.ofPriority(1000, "urgent", "gpu", count(2))
		if diff := cmp.Diff("UnschedulableAndUnresolvable full map[]", b.outcomeOf(urgent)); diff != "" {
			t.Fatalf("at first (-want +got):\n%s", diff)
		}
		ended := b.claims["important-3"]
		b.remove("important-3")
		patient, equal := b.ofPriority(1000, "patient", "gpu", count(2)), b.ofPriority(-1000, "equal", "gpu", count(2))
		patient.Spec.PreemptionPolicy = new(corev1.PreemptNever)
		for _, pod := range []*corev1.Pod{patient, equal} {
			b.waits(pod)
			if diff := cmp.Diff("QueueSkip", b.after(pod, framework.ResourceClaim, framework.Delete, ended, nil)); diff != "" {
				t.Errorf("hint for pod %s, which evicts nobody (-want +got):\n%s", pod.Name, diff)
			}
		}
		if diff := cmp.Diff("Queue", b.after(urgent, framework.ResourceClaim, framework.Delete, ended, nil)); diff != "" {
			t.Errorf("hint (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff("n1 evict map[n1:[low]]", b.outcomeOf(urgent)); diff != "" {
			t.Errorf("if it were tried (-want +got):\n%s", diff)
		}
	})
	t.Run("a node loses its taint", func(t *testing.T) {
		b := preemptingBed(t, &Rules{})
		b.addNodes("gh200", "n1", "n2")
		b.run("n1", "important", "gpu", 1000)
		b.run("n2", "low", "gpu", -1000)
		n2 := b.nodes[1].Node()
		n2.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
		urgent := b.ofPriority(1000, "urgent", "gpu")
		if diff := cmp.Diff("UnschedulableAndUnresolvable full map[]", b.outcomeOf(urgent)); diff != "" {
			t.Fatalf("at first (-want +got):\n%s", diff)
		}
		before := n2.DeepCopy()
		n2.Spec.Taints = nil
		if diff := cmp.Diff("Queue", b.after(urgent, framework.Node, framework.UpdateNodeTaint, before, n2)); diff != "" {
			t.Errorf("hint (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff("n2 evict map[n2:[low]]", b.outcomeOf(urgent)); diff != "" {
			t.Errorf("if it were tried (-want +got):\n%s", diff)
		}
	})
}
