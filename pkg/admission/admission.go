// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/parameters"
	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Rules are what is checked.
type Rules struct {
	// Driver is the name of the DRA driver whose parameters are ours.
	Driver string
	// SingleShare are the DeviceClasses of which one request may have one device only, such as the shares of MPS servers:
	// a container knows one server.
	SingleShare []string
}

// DefaultRules are those of a driver with the DeviceClasses that come with it.
func DefaultRules() Rules {
	return Rules{Driver: v1alpha1.Group, SingleShare: []string{"mps.cleave.dev"}}
}

// Check reports what is wrong with a ResourceClaim, ResourceClaimTemplate or DeviceClass, each error with its field; nothing
// about other objects.
func (r Rules) Check(object runtime.Object) field.ErrorList {
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		return r.claim(&o.Spec, field.NewPath("spec"))
	case *resourceapi.ResourceClaimTemplate:
		return r.claim(&o.Spec.Spec, field.NewPath("spec", "spec"))
	case *resourceapi.DeviceClass:
		var errs field.ErrorList
		for i := range o.Spec.Config {
			errs = append(errs, r.parameters(&o.Spec.Config[i].DeviceConfiguration, field.NewPath("spec", "config").Index(i))...)
		}
		return errs
	default:
		return nil
	}
}

func (r Rules) claim(spec *resourceapi.ResourceClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	devices := path.Child("devices")
	for i := range spec.Devices.Config {
		errs = append(errs, r.parameters(&spec.Devices.Config[i].DeviceConfiguration, devices.Child("config").Index(i))...)
	}
	for i := range spec.Devices.Requests {
		request, at := &spec.Devices.Requests[i], devices.Child("requests").Index(i)
		if exactly := request.Exactly; exactly != nil {
			errs = append(errs, r.request(exactly.DeviceClassName, exactly.AllocationMode, exactly.Count, exactly.Capacity, at.Child("exactly"))...)
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			errs = append(errs, r.request(sub.DeviceClassName, sub.AllocationMode, sub.Count, sub.Capacity, at.Child("firstAvailable").Index(j))...)
		}
	}
	return errs
}

// parameters checks opaque parameters that are ours.
func (r Rules) parameters(c *resourceapi.DeviceConfiguration, path *field.Path) field.ErrorList {
	if c.Opaque == nil || c.Opaque.Driver != r.Driver {
		return nil
	}
	if _, err := parameters.Decode(r.Driver, c.Opaque.Parameters.Raw); err != nil {
		return field.ErrorList{field.Invalid(path.Child("opaque", "parameters"), field.OmitValueType{}, err.Error())}
	}
	return nil
}

// request checks one request, or one of its alternatives.
func (r Rules) request(class string, mode resourceapi.DeviceAllocationMode, count int64, capacity *resourceapi.CapacityRequirements,
	path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, single := range r.SingleShare {
		if class != single {
			continue
		}
		const instead = "a container can use one MPS server only: ask for more of capacity cores or memory, or in several requests, for " +
			"a container each"
		if mode == resourceapi.DeviceAllocationModeAll {
			errs = append(errs, field.Invalid(path.Child("allocationMode"), mode,
				fmt.Sprintf("class %s gives one share a request; %s", class, instead)))
		} else if count > 1 {
			errs = append(errs, field.Invalid(path.Child("count"), count, fmt.Sprintf("class %s gives one share a request; %s", class, instead)))
		}
	}
	if capacity == nil {
		return errs
	}
	at := path.Child("capacity", "requests")
	for _, name := range []resourceapi.QualifiedName{"memory", "cores", "shares"} {
		for _, key := range []resourceapi.QualifiedName{name, resourceapi.QualifiedName(r.Driver) + "/" + name} {
			if q, ok := capacity.Requests[key]; ok && q.Sign() < 0 {
				errs = append(errs, field.Invalid(at.Key(string(key)), q.String(), "must not be below zero"))
			}
		}
	}
	return errs
}
