// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"encoding/json"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Demand has the requests of claims, with the selectors of their classes. Equal demands have equal keys.
type Demand struct {
	Key         string
	requests    []request
	constraints []constraint
}

// request is a request of a claim, or has its alternatives. All its fields are part of the key.
type request struct {
	Selectors   []string
	Count       int
	Amounts     *resourceapi.CapacityRequirements
	Tolerations []resourceapi.DeviceToleration
	// Constraints are those that it is under, by their number.
	Constraints  []int
	Alternatives []request
}

// constraint is one on an attribute, with its domain.
type constraint struct {
	Attribute string
	Distinct  bool
}

// maxRequests bounds the requests of a demand.
const maxRequests = 63

// Classes finds a DeviceClass.
type Classes func(name string) (*resourceapi.DeviceClass, error)

// NewDemand is the demand of a pod's claims, in the order of the pod. All devices and admin access give ErrUnpredictable.
func NewDemand(class Classes, claims ...*resourceapi.ResourceClaimSpec) (Demand, error) {
	var d Demand
	for _, spec := range claims {
		if err := d.add(class, &spec.Devices); err != nil {
			return Demand{}, err
		}
	}
	if len(d.requests) > maxRequests {
		return Demand{}, fmt.Errorf("claims with %d requests: %w", len(d.requests), ErrUnpredictable)
	}
	key, err := json.Marshal([]any{d.requests, d.constraints})
	if err != nil {
		return Demand{}, fmt.Errorf("encode requests: %w", err)
	}
	d.Key = string(key)
	return d, nil
}

// All are its requests, as bits.
func (d *Demand) All() uint64 { return 1<<len(d.requests) - 1 }

// add adds the requests of a claim.
func (d *Demand) add(class Classes, claim *resourceapi.DeviceClaim) error {
	first := len(d.constraints)
	for i := range claim.Constraints {
		c := &claim.Constraints[i]
		switch {
		case c.MatchAttribute != nil:
			d.constraints = append(d.constraints, constraint{Attribute: string(*c.MatchAttribute)})
		case c.DistinctAttribute != nil:
			d.constraints = append(d.constraints, constraint{Attribute: string(*c.DistinctAttribute), Distinct: true})
		default:
			return fmt.Errorf("claim with a constraint of an unknown kind: %w", ErrUnpredictable)
		}
	}
	devices := 0
	for i := range claim.Requests {
		r, err := newRequest(class, &claim.Requests[i])
		if err != nil {
			return err
		}
		most := r.Count
		for j := range r.Alternatives {
			most = max(most, r.Alternatives[j].Count)
		}
		devices += most
		r.constrain(claim, first, &claim.Requests[i])
		d.requests = append(d.requests, r)
	}
	if devices > resourceapi.AllocationResultsMaxSize {
		return fmt.Errorf("claim for %d devices, more than an allocation may have: %w", devices, ErrUnpredictable)
	}
	return nil
}

// constrain notes the constraints of a claim that a request, or one of its alternatives, is under. The first has a number.
func (r *request) constrain(claim *resourceapi.DeviceClaim, first int, of *resourceapi.DeviceRequest) {
	for i := range claim.Constraints {
		names := claim.Constraints[i].Requests
		all := len(names) == 0 || slices.Contains(names, of.Name)
		if all && len(r.Alternatives) == 0 {
			r.Constraints = append(r.Constraints, first+i)
		}
		for j := range r.Alternatives {
			if all || slices.Contains(names, of.Name+"/"+of.FirstAvailable[j].Name) {
				r.Alternatives[j].Constraints = append(r.Alternatives[j].Constraints, first+i)
			}
		}
	}
}

func newRequest(class Classes, r *resourceapi.DeviceRequest) (request, error) {
	if e := r.Exactly; e != nil {
		if e.AdminAccess != nil && *e.AdminAccess {
			return request{}, fmt.Errorf("request %s has admin access: %w", r.Name, ErrUnpredictable)
		}
		return newExactRequest(class, r.Name, &resourceapi.DeviceSubRequest{
			DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode, Count: e.Count,
			Tolerations: e.Tolerations, Capacity: e.Capacity,
		})
	}
	var found request
	for i := range r.FirstAvailable {
		one, err := newExactRequest(class, r.Name+"/"+r.FirstAvailable[i].Name, &r.FirstAvailable[i])
		if err != nil {
			return request{}, err
		}
		found.Alternatives = append(found.Alternatives, one)
	}
	if len(found.Alternatives) == 0 {
		return request{}, fmt.Errorf("request %s is of an unknown kind: %w", r.Name, ErrUnpredictable)
	}
	return found, nil
}

// newExactRequest is a request for a number of devices, or an alternative.
func newExactRequest(class Classes, name string, r *resourceapi.DeviceSubRequest) (request, error) {
	if r.AllocationMode != resourceapi.DeviceAllocationModeExactCount && r.AllocationMode != "" {
		return request{}, fmt.Errorf("request %s has the mode %s: %w", name, r.AllocationMode, ErrUnpredictable)
	}
	c, err := class(r.DeviceClassName)
	if err != nil {
		return request{}, fmt.Errorf("find DeviceClass %s of request %s: %w", r.DeviceClassName, name, err)
	}
	found := request{Count: int(max(1, r.Count)), Amounts: r.Capacity, Tolerations: r.Tolerations}
	for _, selectors := range [][]resourceapi.DeviceSelector{c.Spec.Selectors, r.Selectors} {
		for _, s := range selectors {
			if s.CEL == nil {
				return request{}, fmt.Errorf("request %s has a selector of an unknown kind: %w", name, ErrUnpredictable)
			}
			found.Selectors = append(found.Selectors, s.CEL.Expression)
		}
	}
	return found, nil
}
