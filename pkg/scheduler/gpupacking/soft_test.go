// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// TestPreFilter_Prefers: of nodes that are equal by their GPUs some of each kind that a pod may prefer are left, and none that is worse.
func TestPreFilter_Prefers(t *testing.T) {
	inZone := func(zone string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}}}}}
		}
	}
	for _, c := range []struct {
		what, want string
		nodes      func(nodes map[string]*fakeNode)
		pod        func(*corev1.Pod)
	}{
		{"nothing", "n1", func(map[string]*fakeNode) {}, func(*corev1.Pod) {}},
		{"a zone", "n1 n2 n3 n4", func(map[string]*fakeNode) {}, inZone("b")},
		{"a taint", "n1 n2 n3", func(nodes map[string]*fakeNode) {
			for _, n := range []string{"n1", "n2", "n4"} {
				nodes[n].node.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}}
			}
		}, func(*corev1.Pod) {}},
		{"a taint that is tolerated", "n1 n2", func(nodes map[string]*fakeNode) {
			nodes["n4"].node.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }},
		{"an image", "n1 n2 n4", func(nodes map[string]*fakeNode) {
			nodes["n4"].images = map[string]*framework.ImageStateSummary{"registry/train:latest": {}}
		}, func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Image: "registry/train"}} }},
		{"replicas in zones", "n1 n2 n3 n4", func(nodes map[string]*fakeNode) {
			other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "set", Controller: new(true)}}}}
			nodes["n3"].pods = []framework.PodInfo{fakePod{pod: other}}
		}, func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{UID: "set", Controller: new(true)}} }},
	} {
		t.Run(c.what, func(t *testing.T) {
			b := newBed(t, `{"candidates": 1}`)
			b.addNodes("gh200", "n1", "n2", "n3", "n4")
			nodes := map[string]*fakeNode{}
			for _, n := range b.nodes {
				node := n.(*fakeNode)
				nodes[node.node.Name] = node
				zone := "a"
				if node.node.Name >= "n3" {
					zone = "b"
				}
				node.node.Labels[corev1.LabelTopologyZone] = zone
			}
			b.addNodes("hgx-h100", "larger") // a GPU of it leaves more behind
			c.nodes(nodes)
			pod := b.pod("pod", "gpu")
			c.pod(pod)
			if _, got := b.preFilter(pod); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestTies: pods do not all go to the nodes whose names come first, and each pod has an order of its own.
func TestTies(t *testing.T) {
	first := map[string]int{}
	for i := range 100 {
		pod := types.UID(fmt.Sprint("pod-", i))
		names := strings.Fields("n1 n2 n3 n4")
		slices.SortFunc(names, func(a, b string) int {
			if tieOf(pod, a) < tieOf(pod, b) {
				return -1
			}
			return 1
		})
		first[names[0]]++
	}
	for _, name := range strings.Fields("n1 n2 n3 n4") {
		if first[name] < 10 {
			t.Errorf("of 100 pods, %s is first for %d", name, first[name])
		}
	}
}
