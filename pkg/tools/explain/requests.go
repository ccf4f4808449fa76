// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// request is one request of a claim, or one of its alternatives.
type request struct {
	claim       string
	name        string
	class       string
	selectors   []resourceapi.DeviceSelector
	mode        resourceapi.DeviceAllocationMode
	count       int64
	capacity    map[resourceapi.QualifiedName]resource.Quantity
	tolerations []resourceapi.DeviceToleration
	admin       bool
	// uncounted: the pod's scheduler lets it have devices whatever their counters have left.
	uncounted bool
	// alone is the request in a claim of its own, without constraints, for one device.
	alone *resourceapi.ResourceClaim
}

// exactly is the request in the words of the API.
func (r *request) exactly() *resourceapi.ExactDeviceRequest {
	return r.alone.Spec.Devices.Requests[0].Exactly
}

// all reports whether it asks for every device that matches.
func (r *request) all() bool { return r.mode == resourceapi.DeviceAllocationModeAll }

// requestsOf are the alternatives of all requests of a claim, in order.
func requestsOf(claim *resourceapi.ResourceClaim) []*request {
	var all []*request
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if e := r.Exactly; e != nil {
			all = append(all, newRequest(claim, r.Name, e))
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			all = append(all, newRequest(claim, resourceclaim.CreateSubRequestRef(r.Name, s.Name), &resourceapi.ExactDeviceRequest{
				DeviceClassName: s.DeviceClassName, Selectors: s.Selectors, AllocationMode: s.AllocationMode, Count: s.Count,
				Capacity: s.Capacity, Tolerations: s.Tolerations,
			}))
		}
	}
	return all
}

func newRequest(claim *resourceapi.ResourceClaim, name string, e *resourceapi.ExactDeviceRequest) *request {
	r := &request{
		claim: nameOf(claim), name: name, class: e.DeviceClassName, selectors: e.Selectors, mode: e.AllocationMode, count: max(e.Count, 1),
		tolerations: e.Tolerations, admin: e.AdminAccess != nil && *e.AdminAccess,
	}
	if e.Capacity != nil {
		r.capacity = e.Capacity.Requests
	}
	r.alone = claimFor(e, 1)
	return r
}

// claimFor is a claim with one request for so many devices.
func claimFor(e *resourceapi.ExactDeviceRequest, count int64) *resourceapi.ResourceClaim {
	one := e.DeepCopy()
	one.AllocationMode, one.Count = resourceapi.DeviceAllocationModeExactCount, count
	c := &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "request", Exactly: one}}}}}
	c.UID = "explained"
	return c
}

// withDefaults sets the API server's defaults in claims that were not created yet.
func withDefaults(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	set := func(mode *resourceapi.DeviceAllocationMode, count *int64) {
		if *mode == "" {
			*mode = resourceapi.DeviceAllocationModeExactCount
		}
		if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			set(&r.Exactly.AllocationMode, &r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			set(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
		}
	}
	return claim
}

// ask describes a request for people.
func (r *request) ask() Ask {
	a := Ask{Claim: r.claim, Request: r.name, Class: r.class, Count: r.count}
	if r.all() {
		a.Count = 0
	}
	for _, name := range slices.Sorted(maps.Keys(r.capacity)) {
		q := r.capacity[name]
		a.Capacity = append(a.Capacity, fmt.Sprintf("%s %s", name, &q))
	}
	return a
}

func nameOf(claim *resourceapi.ResourceClaim) string { return claim.Namespace + "/" + claim.Name }
