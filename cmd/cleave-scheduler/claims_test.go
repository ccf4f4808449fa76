// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-scheduler/framework"
)

// knownClaims are those of a scheduler, by name.
type knownClaims struct {
	framework.ResourceClaimTracker
	claims map[string]*resourceapi.ResourceClaim
}

func (k knownClaims) Get(_, name string) (*resourceapi.ResourceClaim, error) {
	if claim := k.claims[name]; claim != nil {
		return claim, nil
	}
	return nil, fmt.Errorf("get claim %s: %w", name, framework.ErrNotFound)
}

// TestElsewhere: where a claim of a pod has devices of another node, nobody is evicted for it.
func TestElsewhere(t *testing.T) {
	on := func(names ...string) *resourceapi.ResourceClaim {
		claim := &resourceapi.ResourceClaim{}
		claim.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: names}}}}}}
		return claim
	}
	everywhere := on()
	everywhere.Status.Allocation.NodeSelector = nil
	p := &candidatePlugin{view: view{claims: &tracker{ResourceClaimTracker: knownClaims{claims: map[string]*resourceapi.ResourceClaim{
		"here": on("n1"), "there": on("n2"), "everywhere": everywhere, "free": {}}}}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, c := range []struct {
		claims []string
		want   bool
	}{{nil, false}, {[]string{"here", "everywhere", "free", "missing"}, false}, {[]string{"here", "there"}, true}} {
		pod := &corev1.Pod{}
		for _, name := range c.claims {
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
		}
		if got := p.elsewhere(pod, node); got != c.want {
			t.Errorf("a pod with claims %v is elsewhere: %t", c.claims, got)
		}
	}
}
