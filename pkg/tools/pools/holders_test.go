// SPDX-License-Identifier: Apache-2.0

package pools_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// podOf is a pod of a priority that started at a time, in seconds since 1970.
func podOf(name string, priority int32, start int64) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": name},
		CreationTimestamp: metav1.Unix(start, 0)}, Spec: corev1.PodSpec{Priority: &priority}}
}

// TestHolders_Join: pods that share a claim are one holder, also those that were two before.
func TestHolders_Join(t *testing.T) {
	a, b, c := podOf("a", 1, 30), podOf("b", 2, 20), podOf("c", 3, 10)
	all := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
	all.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
	all.Status.DisruptionsAllowed = 2
	none, onlyB, empty := all.DeepCopy(), all.DeepCopy(), all.DeepCopy()
	empty.Spec.Selector = &metav1.LabelSelector{}
	all.Name, onlyB.Name, none.Namespace = "a", "b", "elsewhere"
	onlyB.Status.DisruptedPods = map[string]metav1.Time{"a": {}, "c": {}}
	budgets := pools.NewBudgets([]*policyv1.PodDisruptionBudget{all, empty, none, onlyB})
	h := pools.NewHolders()
	h.Add([]packing.Use{{Device: 1}}, []*corev1.Pod{a})
	h.Add([]packing.Use{{Device: 2}}, []*corev1.Pod{c})
	h.Add([]packing.Use{{Device: 3}}, []*corev1.Pod{b})
	h.Add([]packing.Use{{Device: 4}}, []*corev1.Pod{a, b})
	h.Complete(budgets)
	want := []packing.Holder{
		{Uses: []packing.Use{{Device: 1}, {Device: 3}, {Device: 4}}, Priority: 2, Pods: 2, Budgets: []int{0, 0, 1}, Since: 20},
		{Uses: []packing.Use{{Device: 2}}, Priority: 3, Pods: 1, Budgets: []int{0}, Since: 10},
	}
	if diff := cmp.Diff(want, h.All); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]*corev1.Pod{{a, b}, {c}}, h.Pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{2, 2, 2}, budgets.Allowed); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
}

// TestEndOf: a claim ends with all its pods, or stays.
func TestEndOf(t *testing.T) {
	now := time.Unix(1000, 0)
	ends := func(p *corev1.Pod, at int64) *corev1.Pod {
		p.DeletionTimestamp = new(metav1.Unix(at, 0))
		return p
	}
	pods := map[types.UID]*corev1.Pod{}
	for _, p := range []*corev1.Pod{podOf("low", 0, 1), podOf("lower", -1, 1), podOf("equal", 5, 1), ends(podOf("leaves", 0, 1), 990),
		ends(podOf("hangs", 0, 1), 900), ends(podOf("important", 9, 1), 990), podOf("elsewhere", 0, 1)} {
		pods[p.UID] = p
	}
	e := &pools.Evicting{Priority: 5, Now: now, May: func(p *corev1.Pod) bool { return *p.Spec.Priority < 5 },
		Find: func(_, name string, uid types.UID) (*corev1.Pod, bool) {
			if name == "elsewhere" {
				return nil, false
			}
			return pods[uid], pods[uid] == nil
		}}
	for name, tt := range map[string]struct {
		users []string
		owner string
		want  pools.End
	}{
		"its pods":                {users: []string{"low", "lower"}, want: pools.End{Evict: []*corev1.Pod{pods["low"], pods["lower"]}}},
		"made for a pod":          {owner: "low", want: pools.End{Evict: []*corev1.Pod{pods["low"]}}},
		"its pods leave":          {users: []string{"leaves", "gone"}},
		"one is evicted":          {users: []string{"leaves", "low"}, want: pools.End{Evict: []*corev1.Pod{pods["low"]}}},
		"one is as important":     {users: []string{"low", "equal"}, want: pools.End{Stays: pools.StaysWithPod, With: pods["equal"]}},
		"one hangs":               {users: []string{"hangs"}, want: pools.End{Stays: pools.StaysWithPod, With: pods["hangs"]}},
		"one that leaves is more": {users: []string{"important"}, want: pools.End{Stays: pools.StaysWithPod, With: pods["important"]}},
		"one is elsewhere":        {users: []string{"low", "elsewhere"}, want: pools.End{Stays: pools.StaysElsewhere}},
		"a group":                 {users: []string{"podgroups"}, want: pools.End{Stays: pools.StaysForeign}},
		"nobody":                  {want: pools.End{Stays: pools.StaysUnused}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}
			if tt.owner != "" {
				claim.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: tt.owner, UID: types.UID(tt.owner), Controller: new(true)}}
			}
			for _, user := range tt.users {
				r := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: user, UID: types.UID(user)}
				if user == "podgroups" {
					r.APIGroup, r.Resource = "scheduling.k8s.io", user
				}
				claim.Status.ReservedFor = append(claim.Status.ReservedFor, r)
			}
			if diff := cmp.Diff(tt.want, e.EndOf(claim)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
