// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/kube-scheduler/framework"
)

// outcomeOf is how a pod that was there before fares now.
func (b evictionBed) outcomeOf(pod *corev1.Pod) string {
	b.t.Helper()
	state, nodes := b.preFilter(pod)
	d := read(state)
	return fmt.Sprint(nodes, " ", d.outcome, " ", d.victims)
}

// TestEvents_MayEvict: an event after which a pod may evict others wakes it, although nothing fits without an eviction.
func TestEvents_MayEvict(t *testing.T) {
	t.Run("a claim of an important pod ends", func(t *testing.T) {
		b := preemptingBed(t, &Rules{})
		b.addNodes("hgx-h100", "n1")
		for i := range 7 {
			b.run("n1", fmt.Sprint("important-", i), "gpu", 1000)
		}
		b.run("n1", "low", "gpu", -1000)
		urgent := b.pod("urgent", "gpu", count(2))
		urgent.Spec.Priority = new(int32(1000))
		if diff := cmp.Diff("UnschedulableAndUnresolvable full map[]", b.outcomeOf(urgent)); diff != "" {
			t.Fatalf("at first (-want +got):\n%s", diff)
		}
		ended := b.claims["important-3"]
		b.remove("important-3")
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
		urgent := b.pod("urgent", "gpu")
		urgent.Spec.Priority = new(int32(1000))
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

// TestEvictions_GoneAlone: the only pod of a node that may be evicted has gone, and its claim is not deallocated yet. Nobody has to go on
// another node.
func TestEvictions_GoneAlone(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("gh200", "n1", "n2")
	gone := b.run("n1", "gone", "gpu", -1000)
	b.run("n2", "low", "gpu", -1000)
	b.nodes[0].(*fakeNode).pods = nil
	if err := b.informers.Core().V1().Pods().Informer().GetIndexer().Delete(gone); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("n1 evict map[n1:[]]", b.urgent("urgent", "gpu")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHold_BoundElsewhere: a pod for which devices of a node are held finds room on another node. Pods that wait for what was held are
// tried again.
func TestHold_BoundElsewhere(t *testing.T) {
	b := preemptingBed(t, &Rules{})
	b.addNodes("hgx-h100", "n1", "n2")
	for i := range 8 {
		b.run("n1", fmt.Sprint("first-", i), "gpu", 0)
		b.run("n2", fmt.Sprint("second-", i), "gpu", 1000)
	}
	urgent := b.pod("urgent", "gpu", count(2))
	urgent.Spec.Priority = new(int32(1000))
	b.host("", urgent)
	victims := []*resourceapi.ResourceClaim{b.claims["first-0"], b.claims["first-1"]}
	b.plugin.shared.Hold(urgent, "n1", slices.Concat(results(victims[0]), results(victims[1])), victims)
	b.remove("first-0") // and the other one ends in an hour
	low := b.pod("low", "gpu")
	low.Spec.Priority = new(int32(0))
	b.waits(low)

	b.remove("second-0")
	b.remove("second-1")
	node, state := b.place(urgent)
	if node != "n2" {
		t.Fatalf("urgent is on %s", node)
	}
	b.store("urgent")
	b.plugin.PostBind(t.Context(), state, urgent, node)
	if diff := cmp.Diff([]string{"default/low"}, b.activated); diff != "" {
		t.Errorf("tried again (-want +got):\n%s", diff)
	}
	if _, nodes := b.preFilter(low); nodes != "n1" {
		t.Errorf("if it were tried, low would be on %s", nodes)
	}
}
