// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

func TestPods(t *testing.T) {
	recorded := map[types.UID]bool{"a": true, "b": true}
	pods := NewPods(func(uid types.UID) bool { return recorded[uid] })
	claim := func(uid types.UID, users ...string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-" + string(uid), UID: uid}}
		for _, name := range users {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name})
		}
		return c
	}
	both := claim("a", "two", "one")
	both.Status.ReservedFor = append(both.Status.ReservedFor,
		resourceapi.ResourceClaimConsumerReference{APIGroup: "example.com", Resource: "pods", Name: "not a pod"})
	pods.Saw(both)
	pods.Saw(claim("b", "other"))
	pods.Saw(claim("not-here", "elsewhere"))
	for uid, want := range map[types.UID][]string{"a": {"one", "two"}, "b": {"other"}, "not-here": nil, "never": nil} {
		if diff := cmp.Diff(want, pods.Of(uid)); diff != "" {
			t.Errorf("pods of %s (-want +got):\n%s", uid, diff)
		}
	}
	recorded["b"] = false
	pods.Saw(claim("a", "two"))
	want := map[types.UID][]resourceapi.ResourceClaimConsumerReference{"a": {{Resource: "pods", Name: "two"}}}
	if diff := cmp.Diff(want, pods.byClaim); diff != "" {
		t.Errorf("after a claim has gone (-want +got):\n%s", diff)
	}
	var none *Pods
	none.Saw(both)
	if got := none.Of("a"); got != nil {
		t.Errorf("nobody's pods: got %v", got)
	}
}

// Events are about the pods of a claim as the API server has it, else about those that were known.
func TestPods_References(t *testing.T) {
	claim := func(uid types.UID, pod string) *resourceapi.ResourceClaim {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: uid}}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod, UID: types.UID(pod + "-uid")}}
		return c
	}
	pods := NewPods(func(types.UID) bool { return true })
	pods.Saw(claim("a", "before"))
	of := records.Claim{Namespace: "ns", Name: "c", UID: "a"}
	for name, tt := range map[string]struct {
		pods  *Pods
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"as it is":            {pods, claim("a", "now"), "now"},
		"gone":                {pods, nil, "before"},
		"another of its name": {pods, claim("b", "now"), "before"},
		"not known":           {nil, claim("a", "now"), "now"},
		"gone and not known":  {nil, nil, ""},
	} {
		var want []*corev1.ObjectReference
		if tt.want != "" {
			want = []*corev1.ObjectReference{{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: tt.want, UID: types.UID(tt.want + "-uid")}}
		}
		if diff := cmp.Diff(want, tt.pods.References(of, tt.claim)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
