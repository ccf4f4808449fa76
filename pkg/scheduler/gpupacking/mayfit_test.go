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

// TestMayFit_Holds: beside what is held, it is found once for all pods that ask for the same whether they fit, and again when the hold has
// ended. What is held for a pod itself is no obstacle.
func TestMayFit_Holds(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	urgent := b.urgentPod("1g.12gb")
	b.plugin.shared.Hold(urgent, "n1", []Result{{Driver: driver, Pool: "n1", Device: wholeOf(b)}}, nil)
	v := b.plugin.cluster.views["n1"][0]
	for i := range 3 {
		pod := b.ofPriority(0, fmt.Sprint("low-", i), "1g.12gb")
		b.waits(pod)
		if b.plugin.mayFit(pod, "n1") {
			t.Errorf("pod %s may fit beside what is held", pod.Name)
		}
		if plans, alone := len(v.plans), len(v.alone); plans != 1 || alone != 1 {
			t.Errorf("after pod %s, %d plans and %d answers are known, want one of each", pod.Name, plans, alone)
		}
	}
	if !b.fits("higher", "1g.12gb", 1001) || !b.fits("urgent", "1g.12gb", 1000) || b.fits("equal", "1g.12gb", 1000) {
		t.Error("what is held is not held for pods of the same or a lower priority alone")
	}
	b.plugin.shared.Drop(urgent.UID)
	if !b.fits("after", "1g.12gb", 0) {
		t.Error("nothing is free after the hold has ended")
	}
}

// TestMayFit_TwoHolds: what is known beside two holds is neither for a pod that has one of them nor for the time when one has ended.
func TestMayFit_TwoHolds(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1")
	for _, name := range []string{"first", "second"} {
		b.run("n1", "for-"+name, "3g.48gb", 0)
	}
	for _, name := range []string{"first", "second"} {
		pod := b.ofPriority(1000, name, "3g.48gb")
		b.host("", pod)
		b.plugin.shared.Hold(pod, "n1", results(b.claims["for-"+name]), nil)
		b.remove("for-" + name)
	}
	if b.fits("equal", "3g.48gb", 1000) || !b.fits("first", "3g.48gb", 1000) {
		t.Error("what is held is not for the pods alone for which it is")
	}
	b.plugin.shared.Drop("second")
	if !b.fits("equal", "3g.48gb", 1000) {
		t.Error("what was held for the second pod is not free after its hold has ended")
	}
}
