// SPDX-License-Identifier: Apache-2.0

package main

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/dynamic-resource-allocation/structured/schedulerapi"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// view is a plugin's view of devices and claims.
type view struct {
	*gpupacking.CandidateSlices
	claims *tracker
}

func (v view) ResourceClaims() framework.ResourceClaimTracker { return v.claims }

// tracker is the scheduler's with other allocations.
type tracker struct {
	framework.ResourceClaimTracker
	// released are claims that count as not allocated, by UID; kept are devices that count as allocated.
	released map[types.UID]*resourceapi.ResourceClaim
	kept     []gpupacking.Result
	// dry keeps what a plugin reserves from the scheduler. It is here instead.
	dry      bool
	reserved []gpupacking.Result
}

// reset makes the allocations those of the scheduler again. Where the tracker is not for dry runs, others than the owner read claims of
// it at any time.
func (t *tracker) reset() {
	t.kept = nil
	if t.dry {
		t.released, t.reserved = nil, nil
	}
}

// Get is a claim as it would be.
func (t *tracker) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := t.ResourceClaimTracker.Get(namespace, name)
	if err != nil || !t.dry || t.released[claim.UID] == nil {
		return claim, err
	}
	claim = claim.DeepCopy()
	claim.Status.Allocation, claim.Status.ReservedFor = nil, nil
	return claim, nil
}

// GatherAllocatedState is what would be allocated.
func (t *tracker) GatherAllocatedState() (*schedulerapi.AllocatedState, error) {
	all, err := t.ResourceClaimTracker.GatherAllocatedState()
	if err == nil {
		t.change(all)
	}
	return all, err
}

// ListAllAllocatedDevices is what would be allocated, where devices are not shared.
func (t *tracker) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	all, err := t.ResourceClaimTracker.ListAllAllocatedDevices()
	if err == nil {
		t.change(&schedulerapi.AllocatedState{AllocatedDevices: all, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection()})
	}
	return all, err
}

// change makes what is allocated what would be. The maps are the caller's: the scheduler makes them for each call.
func (t *tracker) change(all *schedulerapi.AllocatedState) {
	for _, claim := range t.released {
		for i := range claim.Status.Allocation.Devices.Results {
			count(all, &claim.Status.Allocation.Devices.Results[i], false)
		}
	}
	for i := range t.kept {
		count(all, &t.kept[i], true)
	}
}

// SignalClaimPendingAllocation notes what a plugin reserves.
func (t *tracker) SignalClaimPendingAllocation(uid types.UID, claim *resourceapi.ResourceClaim) error {
	if !t.dry {
		return t.ResourceClaimTracker.SignalClaimPendingAllocation(uid, claim)
	}
	t.reserved = append(t.reserved, claim.Status.Allocation.Devices.Results...)
	return nil
}

// count adds a device to a state, or takes it away, as the scheduler counts it (foreachAllocatedDevice of
// pkg/scheduler/framework/plugins/dynamicresources/allocateddevices.go, kubernetes 1.37.2).
func count(state *schedulerapi.AllocatedState, r *gpupacking.Result, add bool) {
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
