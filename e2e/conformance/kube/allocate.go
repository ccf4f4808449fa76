// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// features are those of a scheduler of Kubernetes 1.37 with default feature gates.
var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

// ErrNoFit is wrapped for claims that the scheduler would not allocate on the node.
var ErrNoFit = errors.New("nothing free on the node fits")

// Fit finds what the scheduler would allocate on the node to claims of these specs together, with its own allocator
// (k8s.io/dynamic-resource-allocation/structured), from the slices and claims of this moment. Nothing is written.
func (c *Cluster) Fit(ctx context.Context, specs ...resourceapi.ResourceClaimSpec) ([]resourceapi.AllocationResult, error) {
	node, err := c.node(ctx)
	if err != nil {
		return nil, err
	}
	published, err := c.Slices(ctx)
	if err != nil {
		return nil, err
	}
	classes, err := c.classes(ctx)
	if err != nil {
		return nil, err
	}
	taken, err := c.taken(ctx)
	if err != nil {
		return nil, err
	}
	return fit(ctx, node, published, classes, taken, specs)
}

func fit(ctx context.Context, node *corev1.Node, published []*resourceapi.ResourceSlice, classes classes, taken structured.AllocatedState,
	specs []resourceapi.ResourceClaimSpec) ([]resourceapi.AllocationResult, error) {
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: features.ConsumableCapacity})
	allocator, err := structured.NewAllocator(ctx, features, taken, classes, published, cache)
	if err != nil {
		return nil, fmt.Errorf("create the allocator: %w", err)
	}
	var claims []*resourceapi.ResourceClaim
	for i, spec := range specs {
		claims = append(claims, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i)}, Spec: spec})
	}
	results, err := allocator.Allocate(ctx, node, claims)
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, fmt.Errorf("allocate: %w", err)
	}
	if err != nil || len(results) != len(claims) {
		return nil, fmt.Errorf("allocate %d claims: %w", len(claims), errors.Join(ErrNoFit, err))
	}
	return results, nil
}

// Allocations are those of all claims of the cluster.
func (c *Cluster) Allocations(ctx context.Context) ([]resourceapi.DeviceRequestAllocationResult, error) {
	list, err := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	var all []resourceapi.DeviceRequestAllocationResult
	for _, claim := range list.Items {
		if claim.Status.Allocation != nil {
			all = append(all, claim.Status.Allocation.Devices.Results...)
		}
	}
	return all, nil
}

// taken is what claims have, as the scheduler counts it (pkg/scheduler/framework/plugins/dynamicresources,
// foreachAllocatedDevice): admin access takes nothing, a share its amounts.
func (c *Cluster) taken(ctx context.Context) (structured.AllocatedState, error) {
	state := noneTaken()
	all, err := c.Allocations(ctx)
	if err != nil {
		return state, err
	}
	for _, r := range all {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		switch {
		case r.AdminAccess != nil && *r.AdminAccess:
		case r.ShareID == nil:
			state.AllocatedDevices.Insert(id)
		default:
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	return state, nil
}

func noneTaken() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// Misfits are the devices of a pool that the scheduler could not allocate by themselves, on the node with nothing allocated and
// without taints, with the reason of each.
func (c *Cluster) Misfits(ctx context.Context, pool Pool) (map[string]error, error) {
	node, err := c.node(ctx)
	if err != nil {
		return nil, err
	}
	misfits := map[string]error{}
	for _, d := range pool.Devices() {
		if err := fitAlone(ctx, node, pool, d); errors.Is(err, ErrNoFit) {
			misfits[d.Name] = err
		} else if err != nil {
			return nil, err
		}
	}
	return misfits, nil
}

// fitAlone shows the allocator a pool of one device and the pool's counters.
func fitAlone(ctx context.Context, node *corev1.Node, pool Pool, device resourceapi.Device) error {
	const class = "any"
	var shown []*resourceapi.ResourceSlice
	for _, s := range pool.Slices {
		one := *s
		one.Spec.Devices = nil
		for _, d := range s.Spec.Devices {
			if d.Name == device.Name {
				d.Taints = nil
				one.Spec.Devices = append(one.Spec.Devices, d)
			}
		}
		shown = append(shown, &one)
	}
	_, err := fit(ctx, node, shown, classes{{ObjectMeta: metav1.ObjectMeta{Name: class}}}, noneTaken(), []resourceapi.ResourceClaimSpec{{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "any", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			},
		}}},
	}})
	return err
}
