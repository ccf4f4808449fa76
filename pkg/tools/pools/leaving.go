// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
)

// stuckAfter is for how long after its grace period a pod that ends is expected to be gone. One that is there still may hang for ever,
// and its devices with it: nobody waits for those.
const stuckAfter = time.Minute

// Leaves reports whether a pod ends by itself.
func Leaves(pod *corev1.Pod, now time.Time) bool {
	return pod.DeletionTimestamp != nil && now.Before(pod.DeletionTimestamp.Add(stuckAfter))
}

// StuckAt is when a pod that ends is not expected to be gone soon any longer.
func StuckAt(pod *corev1.Pod) time.Time { return pod.DeletionTimestamp.Add(stuckAfter) }

// Consumers are the pods of a claim that has devices, by name and UID; not ok where others than pods use it, or nobody does. Where no
// pod has reserved it, it is the pod that it was made for.
func Consumers(claim *resourceapi.ResourceClaim) (pods []resourceapi.ResourceClaimConsumerReference, ok bool) {
	if len(claim.Status.ReservedFor) == 0 {
		if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.Kind == "Pod" {
			return []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: owner.Name, UID: owner.UID}}, true
		}
		return nil, false
	}
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup != "" || r.Resource != "pods" {
			return nil, false
		}
	}
	return claim.Status.ReservedFor, true
}

// Stay is why a claim keeps its devices, whoever is evicted; empty where it does not.
type Stay string

// The reasons for which claims stay.
const (
	// StaysUnused is a claim that no pod uses.
	StaysUnused Stay = "unused"
	// StaysForeign is a claim that others than pods use.
	StaysForeign Stay = "foreign"
	// StaysElsewhere is a claim of a pod that is not on the node.
	StaysElsewhere Stay = "elsewhere"
	// StaysWithPod is a claim of a pod that must not be evicted, or that does not end.
	StaysWithPod Stay = "pod"
)

// End says with which pods a claim ends.
type End struct {
	// Evict are the pods that must be evicted for the claim to be released; none where its consumers end by themselves.
	Evict []*corev1.Pod
	Stays Stay
	// With is the pod of StaysWithPod.
	With *corev1.Pod
}

// Evicting is the eviction of pods of a node for one of a priority.
type Evicting struct {
	Priority int32
	Now      time.Time
	// May reports whether a pod may be evicted.
	May func(pod *corev1.Pod) bool
	// Find finds a pod on the node, or reports that it is not at the API server anymore.
	Find func(namespace, name string, uid types.UID) (pod *corev1.Pod, gone bool)
}

// EndOf says with which pods a claim with devices of the node ends.
func (e *Evicting) EndOf(claim *resourceapi.ResourceClaim) End {
	all, ok := Consumers(claim)
	switch {
	case !ok && len(claim.Status.ReservedFor) == 0:
		return End{Stays: StaysUnused}
	case !ok:
		return End{Stays: StaysForeign}
	}
	var found End
	for _, r := range all {
		pod, gone := e.Find(claim.Namespace, r.Name, r.UID)
		switch {
		case gone:
		case pod == nil:
			return End{Stays: StaysElsewhere}
		case pod.DeletionTimestamp == nil && e.May(pod):
			found.Evict = append(found.Evict, pod)
		case schedulinghelpers.PodPriority(pod) > e.Priority || !Leaves(pod, e.Now):
			return End{Stays: StaysWithPod, With: pod}
		}
	}
	return found
}
