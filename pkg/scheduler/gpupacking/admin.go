// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/kube-scheduler/framework"
)

// onlyAdmin reports whether all that a pod asks for is admin access. The allocator then takes nothing for it, so that what counters
// have left does not matter. kube-scheduler counts such devices all the same, and refuses admin access to a GPU of which anything is
// allocated (kubernetes/kubernetes#140729, allocateDevice of k8s.io/dynamic-resource-allocation/structured 0.37.2).
func (a *asks) onlyAdmin(pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) == 0 || a.anyExtended(pod) {
		return false
	}
	for i := range pod.Spec.ResourceClaims {
		claim, err := a.claim(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || claim != nil && slices.ContainsFunc(claim.Spec.Devices.Requests, takes) {
			return false
		}
	}
	return true
}

// AdminNodes are the nodes that a pod with admin access alone may be on by its node selector and affinity: launchers are made for one node
// each, and slices without counters are copies. Nil for any other pod.
func (c *CandidateSlices) AdminNodes(pod *corev1.Pod, nodes []framework.NodeInfo) sets.Set[string] {
	if !(&asks{dra: c.SharedDRAManager}).onlyAdmin(pod) {
		return nil
	}
	names, required := sets.New[string](), nodeaffinity.GetRequiredNodeAffinity(pod)
	for _, n := range nodes {
		match, err := required.Match(n.Node())
		if err != nil {
			return nil // the scheduler says so
		}
		if match {
			names.Insert(n.Node().Name)
		}
	}
	return names
}

// CountsAdmin reports whether a pod asks for admin access and for devices, too. The allocator then counts both, as kube-scheduler's does.
// For what the pod does not take nobody has to go.
func (c *CandidateSlices) CountsAdmin(pod *corev1.Pod) bool {
	a := &asks{dra: c.SharedDRAManager}
	if a.onlyAdmin(pod) {
		return false
	}
	for i := range pod.Spec.ResourceClaims {
		claim, err := a.claim(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || claim == nil {
			continue
		}
		if slices.ContainsFunc(claim.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool { return !takes(r) }) {
			return true
		}
	}
	return false
}

// takes reports whether a request takes devices: one without admin access, or of an unknown kind.
func takes(r resourceapi.DeviceRequest) bool {
	return r.Exactly == nil || r.Exactly.AdminAccess == nil || !*r.Exactly.AdminAccess
}
