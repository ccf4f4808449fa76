// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// searchTimeout bounds the allocator on one node. The scheduler's limit is 10 s.
const searchTimeout = 2 * time.Second

// fit is the allocator's answer for a node.
type fit struct {
	ok bool
	// err is an error that keeps the scheduler from all nodes, or of the context.
	err error
}

// fit runs the scheduler's allocator on a node. Results are shared by equal nodes; what names the claims within the question.
func (c *search) fit(ctx context.Context, s *site, what string, claims ...*resourceapi.ResourceClaim) fit {
	key := what + "\x00" + s.signature
	if known, ok := c.fits[key]; ok {
		return known
	}
	published := slices.Concat(s.slices, s.rest) // a pool is complete with them
	if c.unlimited {
		published = resourcepool.WithoutCounters(published)
	}
	limited, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	f := fit{}
	inner, err := structured.NewAllocator(limited, c.Features, s.state(), c.Classes, published, selectors.CEL)
	if err == nil {
		var results []resourceapi.AllocationResult
		results, err = inner.Allocate(limited, s.node, claims)
		f.ok = err == nil && len(results) == len(claims)
	}
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		f.err = err
	}
	if ctx.Err() == nil { // else it says nothing of the node
		c.fits[key] = f
	}
	return f
}

// need is the amount that a request takes from a device; ok is false if the device is too small for it.
type need struct {
	ok     bool
	amount map[resourceapi.QualifiedName]resource.Quantity
}

// anything is the class of a device by itself.
const anything = "anything"

// need asks the allocator how much a request takes from an unused device: it knows the defaults and how amounts are rounded.
func (c *Cluster) need(ctx context.Context, r *request, d *resourceapi.Device) need {
	if len(r.capacity) == 0 && !resourcepool.IsShared(d) {
		return need{ok: true}
	}
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.capacity)) {
		q := r.capacity[name]
		key.WriteString(string(name) + "=" + q.String() + "\x00")
	}
	alone := resourceapi.Device{Name: "device", AllowMultipleAllocations: d.AllowMultipleAllocations, Capacity: d.Capacity}
	if data, err := alone.Marshal(); err == nil {
		key.Write(data)
	}
	if known := c.needs[key.String()]; known != nil {
		return *known
	}
	n := need{}
	node := "node"
	published := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: "driver", NodeName: &node,
		Devices: []resourceapi.Device{alone}, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	claim := claimFor(&resourceapi.ExactDeviceRequest{DeviceClassName: anything, Capacity: r.exactly().Capacity}, 1)
	inner, err := structured.NewAllocator(ctx, c.Features, allocator.NewAllocated().AllocatedState,
		resourcepool.Classes{{ObjectMeta: metav1.ObjectMeta{Name: anything}}}, []*resourceapi.ResourceSlice{published}, selectors.CEL)
	if err != nil {
		return n
	}
	of := &corev1.Node{}
	of.Name = node
	results, err := inner.Allocate(ctx, of, []*resourceapi.ResourceClaim{claim})
	if err == nil && len(results) == 1 {
		n.ok, n.amount = true, results[0].Devices.Results[0].ConsumedCapacity
	}
	if ctx.Err() == nil {
		c.needs[key.String()] = &n
	}
	return n
}
