// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/parameters"
	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Rules are the checks.
type Rules struct {
	// Driver is the name of the DRA driver whose parameters are ours.
	Driver string
	// SingleShare are the DeviceClasses whose requests may have only one device each, such as the shares of MPS servers:
	// a container knows one server.
	SingleShare []string
}

// DefaultRules are those of a driver with the DeviceClasses that come with it.
func DefaultRules() Rules {
	return Rules{Driver: v1alpha1.Group, SingleShare: []string{"mps.cleave.dev", "mig-mps.cleave.dev"}}
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
			_, wrong := r.decode(&o.Spec.Config[i].DeviceConfiguration, field.NewPath("spec", "config").Index(i))
			errs = append(errs, wrong...)
		}
		return errs
	default:
		return nil
	}
}

func (r Rules) claim(spec *resourceapi.ResourceClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var configs []configuration
	devices := path.Child("devices")
	for i := range spec.Devices.Config {
		c, at := &spec.Devices.Config[i], devices.Child("config").Index(i)
		params, wrong := r.decode(&c.DeviceConfiguration, at)
		errs = append(errs, wrong...)
		if params != nil {
			configs = append(configs, configuration{c.Requests, params, at.Child("opaque", "parameters")})
		}
	}
	var requests [][]choice
	for i := range spec.Devices.Requests {
		choices := choicesOf(&spec.Devices.Requests[i], devices.Child("requests").Index(i))
		requests = append(requests, choices)
		for j := range choices {
			errs = append(errs, r.count(&choices[j])...)
			errs = append(errs, r.amounts(&choices[j])...)
		}
	}
	return append(errs, r.fit(configs, requests)...)
}

// decode reads opaque parameters that are ours; nil for others.
func (r Rules) decode(c *resourceapi.DeviceConfiguration, path *field.Path) (*parameters.Parameters, field.ErrorList) {
	if c.Opaque == nil || c.Opaque.Driver != r.Driver {
		return nil, nil
	}
	params, err := parameters.Decode(r.Driver, c.Opaque.Parameters.Raw)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(path.Child("opaque", "parameters"), field.OmitValueType{}, err.Error())}
	}
	return params, nil
}

// count refuses more than one device in a request of a class that can have one.
func (r Rules) count(c *choice) field.ErrorList {
	if !slices.Contains(r.SingleShare, c.class) {
		return nil
	}
	const instead = "a container can use one MPS server only: ask for more of capacity cores or memory, or in several requests, for " +
		"a container each"
	switch {
	case c.mode == resourceapi.DeviceAllocationModeAll:
		return field.ErrorList{field.Invalid(c.path.Child("allocationMode"), c.mode,
			fmt.Sprintf("class %s gives one share a request; %s", c.class, instead))}
	case c.count > 1:
		return field.ErrorList{field.Invalid(c.path.Child("count"), c.count,
			fmt.Sprintf("class %s gives one share a request; %s", c.class, instead))}
	default:
		return nil
	}
}
