// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"encoding/json"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
)

// Demand has the requests of claims, with the selectors of their classes. Equal demands have equal keys.
type Demand struct {
	Key      string
	requests []request
}

// request is a request of a claim. All its fields are part of the key.
type request struct {
	Selectors   []string
	Count       int
	Amounts     *resourceapi.CapacityRequirements
	Tolerations []resourceapi.DeviceToleration
}

// Classes finds a DeviceClass.
type Classes func(name string) (*resourceapi.DeviceClass, error)

// NewDemand is the demand of a pod's claims, in the order of the pod. Constraints, alternatives, all devices and admin access
// give ErrUnpredictable.
func NewDemand(class Classes, claims ...*resourceapi.ResourceClaimSpec) (Demand, error) {
	var d Demand
	for _, spec := range claims {
		if len(spec.Devices.Constraints) > 0 {
			return Demand{}, fmt.Errorf("claim with constraints: %w", ErrUnpredictable)
		}
		devices := 0
		for i := range spec.Devices.Requests {
			r, err := newRequest(class, &spec.Devices.Requests[i])
			if err != nil {
				return Demand{}, err
			}
			devices += r.Count
			d.requests = append(d.requests, r)
		}
		if devices > resourceapi.AllocationResultsMaxSize {
			return Demand{}, fmt.Errorf("claim for %d devices, more than an allocation may have: %w", devices, ErrUnpredictable)
		}
	}
	key, err := json.Marshal(d.requests)
	if err != nil {
		return Demand{}, fmt.Errorf("encode requests: %w", err)
	}
	d.Key = string(key)
	return d, nil
}

func newRequest(class Classes, r *resourceapi.DeviceRequest) (request, error) {
	e := r.Exactly
	switch {
	case e == nil:
		return request{}, fmt.Errorf("request %s has alternatives: %w", r.Name, ErrUnpredictable)
	case e.AllocationMode != resourceapi.DeviceAllocationModeExactCount && e.AllocationMode != "":
		return request{}, fmt.Errorf("request %s has the mode %s: %w", r.Name, e.AllocationMode, ErrUnpredictable)
	case e.AdminAccess != nil && *e.AdminAccess:
		return request{}, fmt.Errorf("request %s has admin access: %w", r.Name, ErrUnpredictable)
	}
	c, err := class(e.DeviceClassName)
	if err != nil {
		return request{}, fmt.Errorf("find DeviceClass %s of request %s: %w", e.DeviceClassName, r.Name, err)
	}
	found := request{Count: int(max(1, e.Count)), Amounts: e.Capacity, Tolerations: e.Tolerations}
	for _, selectors := range [][]resourceapi.DeviceSelector{c.Spec.Selectors, e.Selectors} {
		for _, s := range selectors {
			if s.CEL == nil {
				return request{}, fmt.Errorf("request %s has a selector of an unknown kind: %w", r.Name, ErrUnpredictable)
			}
			found.Selectors = append(found.Selectors, s.CEL.Expression)
		}
	}
	return found, nil
}
