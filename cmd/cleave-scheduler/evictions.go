// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/kube-scheduler/framework"
)

// kube-scheduler's preemption removes pods from a node in a dry run, asks the plugins whether the preemptor fits, and adds pods back.
// For nodes that are nominated for urgent pods it adds those, so that others leave them their room. DynamicResources takes no part in
// either: here it does.

// otherPods are the pods by which a dry run of a node differs from the scheduler's view.
type otherPods struct{ removed, added map[types.UID]*corev1.Pod }

// Clone returns a copy: each node's dry run has its own.
func (o *otherPods) Clone() framework.StateData {
	return &otherPods{maps.Clone(o.removed), maps.Clone(o.added)}
}

// otherPodsKey is that of otherPods in the state of a scheduling cycle.
const otherPodsKey framework.StateKey = candidateResources + "/other-pods"

// others returns those of a dry run; nil for none.
func others(state framework.CycleState) *otherPods {
	data, err := state.Read(otherPodsKey)
	if err != nil {
		return nil
	}
	o, _ := data.(*otherPods)
	return o
}

// change calls a function with the pods of a dry run.
func changeOthers(state framework.CycleState, do func(o *otherPods)) {
	o := others(state)
	if o == nil {
		o = &otherPods{map[types.UID]*corev1.Pod{}, map[types.UID]*corev1.Pod{}}
		state.Write(otherPodsKey, o)
	}
	do(o)
}

// PreFilterExtensions are the plugin's.
func (p *candidatePlugin) PreFilterExtensions() framework.PreFilterExtensions { return p }

// AddPod adds a pod in a dry run: one that was removed, or one that is nominated for the node.
func (p *candidatePlugin) AddPod(_ context.Context, state framework.CycleState, _ *corev1.Pod, add framework.PodInfo,
	_ framework.NodeInfo) *framework.Status {
	changeOthers(state, func(o *otherPods) {
		if uid := add.GetPod().UID; o.removed[uid] != nil {
			delete(o.removed, uid)
		} else {
			o.added[uid] = add.GetPod()
		}
	})
	return nil
}

// RemovePod removes a pod in a dry run.
func (p *candidatePlugin) RemovePod(_ context.Context, state framework.CycleState, _ *corev1.Pod, remove framework.PodInfo,
	_ framework.NodeInfo) *framework.Status {
	changeOthers(state, func(o *otherPods) {
		if uid := remove.GetPod().UID; o.added[uid] != nil {
			delete(o.added, uid)
		} else {
			o.removed[uid] = remove.GetPod()
		}
	})
	return nil
}

// Filter is that of DynamicResources. In a dry run, claims whose pods are all removed count as not allocated, and those of pods that
// are added as allocated.
func (p *candidatePlugin) Filter(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node framework.NodeInfo) *framework.Status {
	o := others(state)
	if o == nil || len(o.removed)+len(o.added) == 0 {
		return p.DynamicResources.Filter(ctx, state, pod, node)
	}
	c, err := p.changeOf(ctx, o, pod, node)
	if err != nil {
		return framework.AsStatus(err)
	}
	return p.whatIf.filter(ctx, pod, node, c)
}

// changeOf is what a dry run changes of the allocations of a node.
func (p *candidatePlugin) changeOf(ctx context.Context, o *otherPods, pod *corev1.Pod, node framework.NodeInfo) (change, error) {
	all, err := p.claimsOn(node.Node().Name)
	if err != nil {
		return change{}, err
	}
	ends := func(uid types.UID) bool { return o.removed[uid] != nil }
	c := change{released: releasedBy(all, ends)}
	for _, uid := range slices.Sorted(maps.Keys(o.added)) {
		held, err := p.heldBy(ctx, o.added[uid], node, all, c)
		if err != nil {
			return change{}, fmt.Errorf("count the devices of nominated pod %s/%s: %w", o.added[uid].Namespace, o.added[uid].Name, err)
		}
		c.held = append(c.held, held...)
	}
	return c, nil
}

// claimsOn are the claims with devices of a node's pools, as the scheduler knows them. A pool of Cleave has its node's name.
func (p *candidatePlugin) claimsOn(node string) ([]*resourceapi.ResourceClaim, error) {
	all, err := p.handle.SharedDRAManager().ResourceClaims().List()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(c *resourceapi.ResourceClaim) bool {
		return c.Status.Allocation == nil || !slices.ContainsFunc(c.Status.Allocation.Devices.Results,
			func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Pool == node })
	}), nil
}

// releasedBy are the claims whose consumers all end, by UID. Consumers that are no pods are not known to end.
func releasedBy(all []*resourceapi.ResourceClaim, ends func(pod types.UID) bool) map[types.UID]*resourceapi.ResourceClaim {
	released := map[types.UID]*resourceapi.ResourceClaim{}
	for _, claim := range all {
		if len(claim.Status.ReservedFor) > 0 && !slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
			return r.APIGroup != "" || r.Resource != "pods" || !ends(r.UID)
		}) {
			released[claim.UID] = claim
		}
	}
	return released
}

// unallocated are the claims of a pod that are still to be allocated.
func (p *candidatePlugin) unallocated(pod *corev1.Pod) ([]*resourceapi.ResourceClaim, error) {
	var found []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // it has none yet
		}
		claim, err := p.handle.SharedDRAManager().ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return nil, err
		}
		if claim.Status.Allocation == nil {
			found = append(found, claim)
		}
	}
	return found, nil
}
