// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// mayEvict reports whether a pod may evict others at all.
func (a *attempt) mayEvict(pod *corev1.Pod) (ok bool, why string) {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false, "not eligible due to preemptionPolicy=Never."
	}
	if a.devices.view.CountsAdmin(pod) {
		return false, "not eligible due to admin access, which takes nothing, along with claims for devices."
	}
	if with := a.shared.HeldWith(pod, a.devices.claimsOf(pod)); with != nil {
		return false, "not eligible while others are evicted for pod " + klog.KObj(with).String() + ", which shares a claim."
	}
	return true, ""
}

// evictable reports whether all pods of a victim may be evicted.
func (p *preemptionPlugin) evictable(victim preemption.Victim, preemptor *corev1.Pod) bool {
	now, priority := time.Now(), schedulinghelpers.PodPriority(preemptor)
	for _, i := range victim.Pods() {
		pod := i.GetPod()
		if pod.DeletionTimestamp != nil {
			if victim.Priority() > priority || !pools.Leaves(pod, now) {
				return false
			}
		} else if ok, _ := p.rules.Evictable(pod, victim.Priority(), priority, now); !ok {
			return false
		}
	}
	return true
}

// earliest is when one more pod may be evicted for another that asks for devices; zero for never. Pods without count on nodes that have
// devices: those may be free, and CPU or memory not. They do not where GPUPacking ended the attempt before it was filtered, as no node has
// free devices.
func (p *preemptionPlugin) earliest(preemptor *corev1.Pod, filtered bool) (first time.Time) {
	if len(p.rules.MinRuntime)+len(p.rules.MaxRuntime) == 0 {
		return first
	}
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return first
	}
	now, priority := time.Now(), schedulinghelpers.PodPriority(preemptor)
	for _, node := range nodes {
		devices := filtered && p.shared.HasDevices(node.Node().Name)
		for _, i := range node.GetPods() {
			if !devices && len(i.GetPod().Spec.ResourceClaims) == 0 && i.GetPod().Status.ExtendedResourceClaimStatus == nil {
				continue
			}
			ok, at := p.rules.Evictable(i.GetPod(), schedulinghelpers.PodPriority(i.GetPod()), priority, now)
			if !ok && !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	return first
}
