// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/history"
)

// scripted is a source that does what a test says.
type scripted func(r *history.Recorder)

func (s scripted) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	s(r)
	ready()
	<-ctx.Done()
	return nil
}

// memberOf is a pod that has a claim which was generated for its PodGroup.
func memberOf(uid, claim string) *corev1.Pod {
	template := "template"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "ns"},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}},
		Status:     corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}},
	}
}

// A claim that is reserved for a PodGroup is that of the group's pods on the node, whichever is seen first.
func TestClaimStates_PodGroup(t *testing.T) {
	shared := claimObject("a", "1", "gpu-0")
	shared.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "group"}}
	r := record(t, scripted(func(r *history.Recorder) {
		s := newClaimStates(r, API{Driver: driver, Node: theNode})
		s.used(memberOf("pod-2", shared.Name))
		s.changed(shared)
		s.used(memberOf("pod-1", shared.Name))
		s.used(memberOf("pod-1", shared.Name))
		s.used(memberOf("pod-3", "claim-of-another"))
		s.used(memberOf("pod-4", "claim-b"))
		s.changed(claimObject("b", "2", "gpu-1", "pod-5")) // reserved by pods, which are named
		s.changed(claimObject("a", "3", ""))               // free again: who comes then has nothing
		s.used(memberOf("pod-6", shared.Name))
		s.deleted(shared)
	}))
	want := []history.Fact{claimFact("a", "gpu-0", "pod-2"), claimFact("a", "gpu-0", "pod-1", "pod-2"), claimFact("b", "gpu-1", "pod-5"),
		claimFact("a", ""), gone(claimFact("a", "gpu-0"))}
	checkFacts(t, r, want)
}

// Of claims that are being deleted, the history has what keeps them, and each change of that once.
func TestClaimStates_Deleting(t *testing.T) {
	group := resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "group"}
	deleting := func(c *resourceapi.ResourceClaim, finalizers ...string) *resourceapi.ResourceClaim {
		c.DeletionTimestamp, c.Finalizers = new(metav1.Time), append([]string{resourceapi.Finalizer}, finalizers...)
		return c
	}
	ofGroup := deleting(claimObject("b", "1", "gpu-1"))
	ofGroup.Status.ReservedFor = append(ofGroup.Status.ReservedFor, group)
	r := record(t, scripted(func(r *history.Recorder) {
		s := newClaimStates(r, API{Driver: driver, Node: theNode})
		held := claimObject("a", "1", "gpu-0", "pod-1")
		held.Finalizers = []string{"example.com/held"}
		s.changed(held) // which says nothing before it is deleted
		s.changed(deleting(claimObject("a", "2", "gpu-0", "pod-1"), "example.com/held"))
		s.changed(deleting(claimObject("a", "3", "gpu-0", "pod-1"), "example.com/other"))
		s.changed(deleting(claimObject("a", "4", "gpu-0", "pod-1"), metav1.FinalizerDeleteDependents))
		s.changed(deleting(claimObject("a", "5", ""), metav1.FinalizerOrphanDependents))
		s.deleted(deleting(claimObject("a", "6", "")))
		s.changed(ofGroup)
		s.changed(deleting(claimObject("c", "1", ""))) // it never had a device
	}))
	fact := func(uid, device string, held bool, pods ...string) history.Claim {
		c := claimFact(uid, device, pods...)
		c.Deleting, c.Held = true, held
		return c
	}
	checkFacts(t, r, []history.Fact{claimFact("a", "gpu-0", "pod-1"), fact("a", "gpu-0", true, "pod-1"), fact("a", "gpu-0", false, "pod-1"),
		fact("a", "", false), gone(claimFact("a", "")), fact("b", "gpu-1", true)})
}
