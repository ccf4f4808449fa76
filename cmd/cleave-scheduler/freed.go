// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
)

// freed are the claims of a pod with devices that others are evicted with, and a pod that they are evicted for. No other pod may take such
// a claim over before it is deallocated.
func (p *candidatePlugin) freed(pod *corev1.Pod) (claims []*resourceapi.ResourceClaim, preemptor *corev1.Pod) {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // DynamicResources reports problems of claims
		}
		claim, err := p.view.claims.Get(pod.Namespace, *name)
		if err != nil {
			continue
		}
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
		if _, err := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("deallocate claim %s: %w", klog.KObj(claim), err)
		}
	}
	return nil
}
