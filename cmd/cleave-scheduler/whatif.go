// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/dynamic-resource-allocation/structured/schedulerapi"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// whatIf runs kube-scheduler's allocator as if some claims were not allocated, and others were. It has a DynamicResources of its
// own, as that of the profile keeps the allocations of a scheduling cycle to itself.
type whatIf struct {
	// mu guards the view: the plugin reads it in PreFilter alone.
	mu     sync.Mutex
	plugin *dynamicresources.DynamicResources
	slices *gpupacking.CandidateSlices
	claims *otherClaims
}

// change is how allocations differ from those that the scheduler knows.
type change struct {
	// released are claims that count as not allocated, by UID; held are devices that count as allocated.
	released map[types.UID]*resourceapi.ResourceClaim
	held     []resourceapi.DeviceRequestAllocationResult
}

// whatIfHandle gives the plugin its view. Its profile has another name: the plugin adds an index of pods of that name to the
// informer, which may have each once.
type whatIfHandle struct {
	framework.Handle
	manager framework.SharedDRAManager
}

func (h whatIfHandle) SharedDRAManager() framework.SharedDRAManager { return h.manager }
func (h whatIfHandle) ProfileName() string                          { return h.Handle.ProfileName() + "/what-if" }

// whatIfManager has other claims than the scheduler.
type whatIfManager struct {
	framework.SharedDRAManager
	claims *otherClaims
}

func (m whatIfManager) ResourceClaims() framework.ResourceClaimTracker { return m.claims }

// otherClaims are the scheduler's with other allocations.
type otherClaims struct {
	framework.ResourceClaimTracker
	change change
}

func newWhatIf(ctx context.Context, args *config.DynamicResourcesArgs, handle framework.Handle, fts feature.Features) (*whatIf, error) {
	w := &whatIf{
		slices: &gpupacking.CandidateSlices{SharedDRAManager: handle.SharedDRAManager()},
		claims: &otherClaims{ResourceClaimTracker: handle.SharedDRAManager().ResourceClaims()},
	}
	inner, err := dynamicresources.New(ctx, args, whatIfHandle{handle, whatIfManager{w.slices, w.claims}}, fts)
	if err != nil {
		return nil, err
	}
	var ok bool
	if w.plugin, ok = inner.(*dynamicresources.DynamicResources); !ok {
		return nil, fmt.Errorf("kube-scheduler's plugin is a %T", inner)
	}
	return w, nil
}

// filter is the plugin's answer for a pod on one node after a change.
func (w *whatIf) filter(ctx context.Context, pod *corev1.Pod, node framework.NodeInfo, c change) *framework.Status {
	state := scheduler.NewCycleState()
	if status := w.prepare(ctx, state, pod, node, c); status != nil {
		return status
	}
	return w.plugin.Filter(ctx, state, pod, node)
}

func (w *whatIf) prepare(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node framework.NodeInfo, c change) *framework.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims.change = c
	defer func() { w.claims.change = change{} }()
	var status *framework.Status
	w.slices.Limited(sets.New(node.Node().Name), func() {
		_, status = w.plugin.PreFilter(ctx, state, pod, []framework.NodeInfo{node})
	})
	if status.IsSkip() {
		return nil
	}
	return status
}

// Get is a claim as it would be.
func (o *otherClaims) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := o.ResourceClaimTracker.Get(namespace, name)
	if err != nil || o.change.released[claim.UID] == nil {
		return claim, err
	}
	claim = claim.DeepCopy()
	claim.Status.Allocation, claim.Status.ReservedFor = nil, nil
	return claim, nil
}

// GatherAllocatedState is what would be allocated.
func (o *otherClaims) GatherAllocatedState() (*schedulerapi.AllocatedState, error) {
	all, err := o.ResourceClaimTracker.GatherAllocatedState()
	if err != nil {
		return nil, err
	}
	for _, claim := range o.change.released {
		for i := range claim.Status.Allocation.Devices.Results {
			count(all, &claim.Status.Allocation.Devices.Results[i], false)
		}
	}
	for i := range o.change.held {
		count(all, &o.change.held[i], true)
	}
	return all, nil
}

// ListAllAllocatedDevices is what would be allocated, where devices are not shared.
func (o *otherClaims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	all, err := o.ResourceClaimTracker.ListAllAllocatedDevices()
	if err != nil {
		return nil, err
	}
	state := &schedulerapi.AllocatedState{AllocatedDevices: all, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	for _, claim := range o.change.released {
		for i := range claim.Status.Allocation.Devices.Results {
			count(state, &claim.Status.Allocation.Devices.Results[i], false)
		}
	}
	for i := range o.change.held {
		count(state, &o.change.held[i], true)
	}
	return state.AllocatedDevices, nil
}

// count adds a device to a state, or takes it away, as the scheduler counts it (foreachAllocatedDevice of
// pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go, kubernetes 1.37.2).
func count(state *schedulerapi.AllocatedState, r *resourceapi.DeviceRequestAllocationResult, add bool) {
	if r.AdminAccess != nil && *r.AdminAccess {
		return
	}
	device := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
	if r.ShareID == nil {
		if add {
			state.AllocatedDevices.Insert(device)
		} else {
			state.AllocatedDevices.Delete(device)
		}
		return
	}
	shared, consumed := structured.MakeSharedDeviceID(device, r.ShareID), structured.NewDeviceConsumedCapacity(device, r.ConsumedCapacity)
	if add {
		state.AllocatedSharedDeviceIDs.Insert(shared)
		state.AggregatedCapacity.Insert(consumed)
	} else {
		state.AllocatedSharedDeviceIDs.Delete(shared)
		state.AggregatedCapacity.Remove(consumed)
	}
}
