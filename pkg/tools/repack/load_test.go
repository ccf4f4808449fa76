// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestNodesFor: pods that the same nodes admit by the same words share one set of nodes.
func TestNodesFor(t *testing.T) {
	b := newBed(t, "a30", nodeNames(2)...)
	s, _ := b.cluster().load()
	pod := func(change func(*corev1.PodSpec)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: defaultTolerations(), NodeSelector: map[string]string{"a": "1", "b": "2"}}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}}}
		change(&p.Spec)
		return p
	}
	equal := func(*corev1.PodSpec) {}
	var got []int
	for _, p := range []*corev1.Pod{
		pod(equal), pod(equal),
		pod(func(p *corev1.PodSpec) { *p.Tolerations[0].TolerationSeconds = 1 }),
		pod(func(p *corev1.PodSpec) { p.NodeSelector["b"] = "3" }),
		pod(func(p *corev1.PodSpec) { p.Affinity = nil }),
		pod(equal),
	} {
		got = append(got, s.nodesFor(p, nil))
	}
	if diff := cmp.Diff([]int{0, 0, 1, 2, 3, 0}, got); diff != "" {
		t.Errorf("sets of nodes (-want +got):\n%s", diff)
	}
	if len(s.admitted) != 4 {
		t.Errorf("%d sets were computed, want 4", len(s.admitted))
	}
}
