// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/api/parameters"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// config is one opaque configuration for this driver.
type config struct {
	source   resourceapi.DeviceAllocationConfiguration
	position int
	params   *parameters.Parameters
}

// rank orders the DeviceClass's configurations before the claim's own.
func (c *config) rank() int {
	if c.source.Source == resourceapi.AllocationConfigSourceClass {
		return 0
	}
	return 1
}

func (c *config) describe() string {
	return fmt.Sprintf("opaque configuration %d (%s)", c.position, describeSource(c.source))
}

// configs are a claim's opaque configurations for this driver: the DeviceClass's first, then the claim's own.
type configs []config

// decodeConfigs rejects parameters that cannot be honoured.
func decodeConfigs(all []resourceapi.DeviceAllocationConfiguration, driver string) (configs, error) {
	var ours configs
	for i, source := range all {
		if source.Opaque == nil || source.Opaque.Driver != driver {
			continue
		}
		c := config{source: source, position: i}
		var err error
		if c.params, err = parameters.Decode(driver, source.Opaque.Parameters.Raw); err != nil {
			return nil, fmt.Errorf("%s: %w", c.describe(), err)
		}
		ours = append(ours, c)
	}
	slices.SortStableFunc(ours, func(a, b config) int { return a.rank() - b.rank() }) // the API guarantees no order
	return ours, nil
}

// of returns the last configuration for a device, which takes precedence; nil if there is none.
func (cs configs) of(d device) *config {
	for _, c := range slices.Backward(cs) {
		requests := c.source.Requests
		if len(requests) == 0 && !c.suits(d.shape) {
			continue
		}
		if len(requests) == 0 || slices.Contains(requests, d.request) || slices.Contains(requests, resourceclaim.BaseRequestRef(d.request)) {
			return &c
		}
	}
	return nil
}

// checkTier rejects parameters for a different kind of device than the allocated one.
func checkTier(s gpu.Shape, c *config) error {
	if c == nil {
		return nil
	}
	if c.params.Exclusive() {
		return checkKind(s, c)
	}
	for _, part := range []struct {
		name string
		set  bool
		of   gpu.Share
	}{{"timeSlice", c.params.TimeSlice != nil, gpu.TimeSlice}, {"mps", c.params.MPS != nil, gpu.MPS}} {
		if part.set && s.Share != part.of {
			return fmt.Errorf("%s sets %s, but device %s is of type %s: remove it, or name the requests that it is for",
				c.describe(), part.name, s.Name(), typeOf(s))
		}
	}
	return nil
}

// typeOf returns the published type of a device.
func typeOf(s gpu.Shape) string { return string(s.Type()) }

// suits reports whether parameters that name no request apply to a device. Those for exclusive devices apply to devices of
// their type and skip others, as with NVIDIA's driver; those for shares apply to all.
func (c *config) suits(s gpu.Shape) bool {
	return !c.params.Exclusive() || c.params.ExclusiveOf == typeOf(s)
}

// checkKind rejects parameters for a different type of exclusive device.
func checkKind(s gpu.Shape, c *config) error {
	want, kind := parameters.ExclusiveKind(typeOf(s)), c.params.Kind
	switch {
	case kind == want:
		return nil
	case want == "":
		return fmt.Errorf("%s is a %s, but device %s is of type %s: use kind %s of %s",
			c.describe(), kind, s.Name(), typeOf(s), v1alpha1.ShareConfigKind, v1alpha1.APIVersion)
	default:
		return fmt.Errorf("%s is a %s, but device %s is of type %s: use a %s, or name the requests that it is for",
			c.describe(), kind, s.Name(), typeOf(s), want)
	}
}

// checkKinds rejects parameters for exclusive devices that apply to none of a claim's devices. Prepare cannot rely on the requests that an
// entry names: the scheduler of Kubernetes 1.37 clears them in the allocation if they are all of the claim's requests
// (k8s.io/dynamic-resource-allocation, structured, "If a config applies to all requests, clear its Requests field").
func (cs configs) checkKinds(devices []device, alternatives bool) error {
	if alternatives {
		return nil
	}
	for i := range cs {
		c := &cs[i]
		if !c.params.Exclusive() || len(c.source.Requests) > 0 || slices.ContainsFunc(devices, func(d device) bool { return c.suits(d.shape) }) {
			continue
		}
		if err := checkKind(devices[0].shape, c); err != nil {
			return fmt.Errorf("request %q: %w", devices[0].request, err)
		}
	}
	return nil
}

// describeSource tells the author of a configuration where it is.
func describeSource(c resourceapi.DeviceAllocationConfiguration) string {
	where := "from the claim"
	if c.Source == resourceapi.AllocationConfigSourceClass {
		where = "from the DeviceClass"
	}
	if len(c.Requests) > 0 {
		where += ", requests " + strings.Join(c.Requests, ", ")
	}
	return where
}
