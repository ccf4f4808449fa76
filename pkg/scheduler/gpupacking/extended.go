// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured/schedulerapi"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// The claim for a pod's extended resources exists in the memory of DynamicResources only, under a name and a UID that it keeps
// to itself, until the pod is bound (pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go). What it
// reserved is what the scheduler counts as allocated since PreFilter. It is kept under the UID of the pod until the claim
// arrives.

// allocatedKey is the key of allocatedBefore.
const allocatedKey framework.StateKey = Name + "/allocated"

// allocatedBefore are the allocations at a pod's PreFilter.
type allocatedBefore struct{ *schedulerapi.AllocatedState }

// Clone returns the state itself: it does not change.
func (a allocatedBefore) Clone() framework.StateData { return a }

// gatherAttempts bound the reads of what is allocated: one is refused when a claim is stored meanwhile.
const gatherAttempts = 5

func (p *Plugin) gather(ctx context.Context) *schedulerapi.AllocatedState {
	var err error
	for range gatherAttempts {
		var all *schedulerapi.AllocatedState
		if all, err = p.dra.ResourceClaims().GatherAllocatedState(); err == nil {
			return all
		}
	}
	klog.FromContext(ctx).V(2).Info("Read what is allocated; devices for extended resources count when their claim is stored", "err", err)
	return nil
}

// beforeExtended notes the allocations before those of a pod with extended resources.
func (p *Plugin) beforeExtended(ctx context.Context, state framework.CycleState, pod *corev1.Pod) {
	if !p.asks.anyExtended(pod) {
		return
	}
	if all := p.gather(ctx); all != nil {
		state.Write(allocatedKey, allocatedBefore{all})
	}
}

// reservedExtended are the devices of a node that were allocated since beforeExtended, without those of the pod's own claims.
func (p *Plugin) reservedExtended(ctx context.Context, state framework.CycleState, node string,
	own []resourceapi.DeviceRequestAllocationResult) []resourceapi.DeviceRequestAllocationResult {
	data, err := state.Read(allocatedKey)
	if err != nil {
		return nil
	}
	before, ok := data.(allocatedBefore)
	if !ok {
		return nil
	}
	after := p.gather(ctx)
	if after == nil {
		return nil
	}
	for i := range own {
		id := schedulerapi.MakeDeviceID(own[i].Driver, own[i].Pool, own[i].Device)
		if own[i].ShareID == nil {
			after.AllocatedDevices.Delete(id)
		} else {
			after.AggregatedCapacity.Remove(schedulerapi.NewDeviceConsumedCapacity(id, own[i].ConsumedCapacity))
		}
	}
	return p.cluster.allocatedSince(node, before.AllocatedState, after)
}

// allocatedSince are the devices of a node that are allocated after and were not before. Of a shared device, all shares since
// are one.
func (c *cluster) allocatedSince(node string, before, after *schedulerapi.AllocatedState) []resourceapi.DeviceRequestAllocationResult {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found []resourceapi.DeviceRequestAllocationResult
	for _, v := range c.views[node] {
		c.refresh(v)
		if v.node == nil {
			continue
		}
		for i := range v.node.Model.Devices {
			pool, name := v.node.Pool(i), v.node.Model.Devices[i].Name
			id := schedulerapi.MakeDeviceID(v.driver, pool, name)
			consumed := consumedSince(before.AggregatedCapacity[id], after.AggregatedCapacity[id])
			if len(consumed) > 0 || after.AllocatedDevices.Has(id) && !before.AllocatedDevices.Has(id) {
				found = append(found, resourceapi.DeviceRequestAllocationResult{
					Driver: v.driver, Pool: pool, Device: name, ConsumedCapacity: consumed,
				})
			}
		}
	}
	return found
}

// consumedSince is by how much of a device's capacities more is consumed.
func consumedSince(before, after schedulerapi.ConsumedCapacity) map[resourceapi.QualifiedName]resource.Quantity {
	var more map[resourceapi.QualifiedName]resource.Quantity
	for _, name := range slices.Sorted(maps.Keys(after)) {
		amount := after[name].DeepCopy()
		if b := before[name]; b != nil {
			amount.Sub(*b)
		}
		if amount.Sign() <= 0 {
			continue
		}
		if more == nil {
			more = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		more[name] = amount
	}
	return more
}

// extendedPod is the UID of the pod for whose extended resources a claim was made; empty where it is another claim.
func extendedPod(claim *resourceapi.ResourceClaim) types.UID {
	if claim == nil || claim.Annotations[resourceapi.ExtendedResourceClaimAnnotation] != "true" {
		return ""
	}
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.Kind == "Pod" {
		return owner.UID
	}
	return ""
}

// extendedClaim is the claim for a pod's extended resources, nil where there is none.
func (c *cluster) extendedClaim(pod *corev1.Pod) *resourceapi.ResourceClaim {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.claims.followAll()
	return c.claims.applied[c.extended[pod.UID]]
}
