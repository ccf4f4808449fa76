// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/selector"
)

// ErrNoFit is wrapped by Allocate for claims that the node has no room for.
var ErrNoFit = errors.New("it does not fit")

// Node is one node as the scheduler sees it: the devices published there, and which of them are allocated.
type Node struct {
	object *corev1.Node
	slices []*resourceapi.ResourceSlice
	class  Classes
	state  Allocated
	// selectors have the expressions of classes.
	selectors *selector.Cache
	of        map[string]sets.Set[structured.DeviceID] // by class, the devices it selects
}

// NewNode creates a node with nothing allocated, from the slices of one node in order of allocation.
func NewNode(published []*resourceapi.ResourceSlice, deviceClasses Classes) (*Node, error) {
	if len(published) == 0 || published[0].Spec.NodeName == nil {
		return nil, errors.New("make a node: no ResourceSlice names one")
	}
	n := &Node{
		object:    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: *published[0].Spec.NodeName}},
		slices:    published,
		class:     deviceClasses,
		selectors: selector.NewCache(),
		of:        map[string]sets.Set[structured.DeviceID]{},
	}
	return n.EmptyClone(), nil
}

// EmptyClone is a node that publishes the same and of which nothing is allocated. What is known of classes is shared, so that clones
// are used by one goroutine.
func (n *Node) EmptyClone() *Node {
	twin := *n
	twin.state = NewAllocated()
	return &twin
}

// Allocate allocates claims together, all or none, as the scheduler does for a pod.
func (n *Node) Allocate(ctx context.Context, claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	return n.allocate(ctx, n.slices, claims)
}

// AllocateFromClass allocates devices of a class. It gives what Allocate gives, in a third of the time, as the allocator is not
// shown the free devices that the class does not select.
func (n *Node) AllocateFromClass(ctx context.Context, name, class string, count int64) (resourceapi.AllocationResult, error) {
	selected, err := n.selected(ctx, class)
	if err != nil {
		return resourceapi.AllocationResult{}, err
	}
	shown := make([]*resourceapi.ResourceSlice, len(n.slices))
	for i, s := range n.slices {
		some := *s
		some.Spec.Devices = slices.DeleteFunc(slices.Clone(s.Spec.Devices), func(d resourceapi.Device) bool {
			id := structured.MakeDeviceID(s.Spec.Driver, s.Spec.Pool.Name, d.Name)
			return !selected.Has(id) && !structured.IsDeviceAllocated(id, &n.state.AllocatedState)
		})
		shown[i] = &some
	}
	results, err := n.allocate(ctx, shown, []*resourceapi.ResourceClaim{NewClaim(name, class, count)})
	if err != nil {
		return resourceapi.AllocationResult{}, err
	}
	return results[0], nil
}

func (n *Node) selected(ctx context.Context, class string) (sets.Set[structured.DeviceID], error) {
	if ids, ok := n.of[class]; ok {
		return ids, nil
	}
	c, err := n.class.Get(class)
	if err != nil {
		return nil, err
	}
	var expressions []string
	for _, s := range c.Spec.Selectors {
		expressions = append(expressions, s.CEL.Expression)
	}
	selectors, err := n.selectors.Compile(expressions...)
	if err != nil {
		return nil, fmt.Errorf("read class %s: %w", class, err)
	}
	ids := sets.New[structured.DeviceID]()
	for _, s := range n.slices {
		for _, d := range s.Spec.Devices {
			ok, err := selector.MatchAll(ctx, selectors, s.Spec.Driver, &d)
			if err != nil {
				return nil, fmt.Errorf("select device %s by class %s: %w", d.Name, class, err)
			}
			if ok {
				ids.Insert(structured.MakeDeviceID(s.Spec.Driver, s.Spec.Pool.Name, d.Name))
			}
		}
	}
	n.of[class] = ids
	return ids, nil
}

func (n *Node) allocate(ctx context.Context, published []*resourceapi.ResourceSlice,
	claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	allocator, err := structured.NewAllocator(ctx, Features(), n.state.AllocatedState, n.class, published, n.selectors.CEL)
	if err != nil {
		return nil, fmt.Errorf("create the allocator: %w", err)
	}
	results, err := allocator.Allocate(ctx, n.object, claims)
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, fmt.Errorf("allocate: %w", err)
	}
	if err != nil || len(results) != len(claims) {
		return nil, fmt.Errorf("allocate %d claims on node %s: %w", len(claims), n.object.Name, errors.Join(ErrNoFit, err))
	}
	n.Take(results...)
	return results, nil
}

// Take records allocations that were made elsewhere.
func (n *Node) Take(results ...resourceapi.AllocationResult) {
	for i := range results {
		n.state.Add(results[i].Devices.Results...)
	}
}

// Release undoes Take.
func (n *Node) Release(results ...resourceapi.AllocationResult) {
	for i := range results {
		n.state.Remove(results[i].Devices.Results...)
	}
}

// Publish replaces the node's slices. Allocations stay.
func (n *Node) Publish(published []*resourceapi.ResourceSlice) {
	n.slices, n.of = published, map[string]sets.Set[structured.DeviceID]{} // twins go on with theirs
}

// Published are the slices of the node.
func (n *Node) Published() []*resourceapi.ResourceSlice { return n.slices }

// Allocated reports whether a device is allocated, once or several times.
func (n *Node) Allocated(driver, pool, device string) bool {
	return structured.IsDeviceAllocated(structured.MakeDeviceID(driver, pool, device), &n.state.AllocatedState)
}

// Device returns a published device by name, or nil.
func (n *Node) Device(name string) *resourceapi.Device {
	for _, s := range n.slices {
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == name {
				return &s.Spec.Devices[i]
			}
		}
	}
	return nil
}

// NewClaim creates a claim for devices of a class. Its UID is its name.
func NewClaim(name, class string, count int64) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, UID: types.UID(name)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
			},
		}}}},
	}
}

// Classes are the cluster's DeviceClasses.
type Classes = resourcepool.Classes
