// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// addLoaded adds an empty node n1, as one that has just come, and others with three partitions on one GPU each.
func addLoaded(b *bed, others ...string) {
	b.t.Helper()
	b.addNodes("hgx-h100", "n1")
	b.addNodes("hgx-h100", others...)
	for _, node := range others {
		fillNode(b, node, 3)
	}
}

// fillNode allocates small partitions of a node.
func fillNode(b *bed, node string, partitions int) {
	b.t.Helper()
	for i := range partitions {
		name := fmt.Sprint(node, "-", i)
		b.pod(name, "1g.10gb")
		b.pending[b.claims[name].UID] = b.allocate(node, b.claims[name])
		b.store(name)
	}
}

// replica is a pod of a controller that is to be spread.
func replica(b *bed, name, controller string) *corev1.Pod {
	pod := b.pod(name, "1g.10gb")
	pod.Annotations[v1alpha1.PlacementAnnotation] = "spread"
	pod.OwnerReferences = []metav1.OwnerReference{
		{Kind: "Other", UID: "owner"}, {Kind: "ReplicaSet", UID: types.UID(controller), Controller: new(true)},
	}
	return pod
}

// runOn adds a pod to those of a node, as the scheduler does when it assumes it.
func runOn(b *bed, node string, pod *corev1.Pod) {
	for _, n := range b.nodes {
		if n.Node().Name == node {
			f := n.(*fakeNode)
			f.pods = append(f.pods, fakePod{pod: pod})
		}
	}
}

// TestPlugin_SpreadsReplicas: a node that is emptier than the others takes one replica, not all, whether the others are left out
// before the allocator or by their score.
func TestPlugin_SpreadsReplicas(t *testing.T) {
	for _, candidates := range []int{1, 2, 4} {
		b := newBed(t, fmt.Sprintf(`{"candidates": %d}`, candidates))
		addLoaded(b, "n2", "n3")
		var got []string
		for i := range 4 {
			pod := replica(b, fmt.Sprint("replica-", i), "set")
			node, _ := b.place(pod)
			runOn(b, node, pod)
			got = append(got, node)
		}
		if diff := cmp.Diff([]string{"n1", "n2", "n3", "n1"}, got); diff != "" {
			t.Errorf("nodes of replicas, %d candidates (-want +got):\n%s", candidates, diff)
		}
	}
}

// TestPreFilter_Replicas: which pods of the emptier node n1 send a replica elsewhere.
func TestPreFilter_Replicas(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(pod, other *corev1.Pod)
		want   string
	}{
		"of the controller":       {func(_, _ *corev1.Pod) {}, "n2"},
		"of another controller":   {func(_, other *corev1.Pod) { other.OwnerReferences[1].UID = "another" }, "n1"},
		"of another namespace":    {func(_, other *corev1.Pod) { other.Namespace = "other" }, "n1"},
		"ending":                  {func(_, other *corev1.Pod) { other.DeletionTimestamp = &metav1.Time{} }, "n1"},
		"owned, not controlled":   {func(_, other *corev1.Pod) { other.OwnerReferences[1].Controller = nil }, "n1"},
		"both without controller": {func(pod, other *corev1.Pod) { pod.OwnerReferences, other.OwnerReferences = nil, nil }, "n1"},
	} {
		b := newBed(t, `{"candidates": 1}`)
		addLoaded(b, "n2")
		other, pod := replica(b, "other", "set"), replica(b, "pod", "set")
		tt.change(pod, other)
		runOn(b, "n1", other)
		if _, got := b.preFilter(pod); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
