// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
)

// claimsOf are the claims that a pod refers to, as far as they exist.
func (p *candidatePlugin) claimsOf(pod *corev1.Pod) (claims []*resourceapi.ResourceClaim) {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // DynamicResources reports problems of claims
		}
		if claim, err := p.view.claims.Get(pod.Namespace, *name); err == nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// elsewhere reports whether a claim of a pod has devices that the node does not reach. Whoever is evicted there, the pod cannot run there.
func (p *candidatePlugin) elsewhere(pod *corev1.Pod, node *corev1.Node) bool {
	return slices.ContainsFunc(p.claimsOf(pod), func(claim *resourceapi.ResourceClaim) bool {
		if claim.Status.Allocation == nil || claim.Status.Allocation.NodeSelector == nil {
			return false
		}
		reached, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
		return err == nil && !reached.Match(node)
	})
}

// freed are the claims of a pod with devices that others are evicted with, and a pod that they are evicted for. No other pod may take such
// a claim over before it is deallocated.
func (p *candidatePlugin) freed(pod *corev1.Pod) (claims []*resourceapi.ResourceClaim, preemptor *corev1.Pod) {
	for _, claim := range p.claimsOf(pod) {
		if by := p.shared.FreedFor(pod, claim); by != nil {
			claims, preemptor = append(claims, claim), by
		}
	}
	return claims, preemptor
}

// giveUp deallocates claims that a pod still has after it was evicted on its way to a node, when kube-scheduler only puts it back into
// its queue. Nobody else would.
func (p *candidatePlugin) giveUp(ctx context.Context, pod *corev1.Pod) error {
	claims, _ := p.freed(pod)
	for _, claim := range claims {
		if users := claim.Status.ReservedFor; len(users) > 1 || len(users) == 1 && users[0].UID != pod.UID {
			continue // those that end have it
		}
		claim = claim.DeepCopy()
		claim.Status.ReservedFor, claim.Status.Allocation, claim.Status.Devices = nil, nil, nil
		api := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace)
		if _, err := api.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("deallocate claim %s: %w", klog.KObj(claim), err)
		}
	}
	return nil
}
