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

// config is one opaque configuration of ours.
type config struct {
	source   resourceapi.DeviceAllocationConfiguration
	position int
	params   *parameters.Parameters
}

// rank puts the DeviceClass's before the claim's own.
func (c *config) rank() int {
	if c.source.Source == resourceapi.AllocationConfigSourceClass {
		return 0
	}
	return 1
}

func (c *config) describe() string {
	return fmt.Sprintf("opaque configuration %d (%s)", c.position, describeSource(c.source))
}

// configs are those of a claim that are ours: the DeviceClass's first, the claim's own after.
type configs []config

// decodeConfigs refuses parameters that cannot be honoured.
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
	slices.SortStableFunc(ours, func(a, b config) int { return a.rank() - b.rank() }) // the API promises no order
	return ours, nil
}

// of returns the last one that is for a device, as it has precedence; nil if there is none.
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

// checkTier refuses parameters for another kind of device than the one that was allocated.
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

// typeOf is the type of a device as it is published.
func typeOf(s gpu.Shape) string { return string(s.Type()) }

// suits reports whether parameters that name no request are for a device. Those for exclusive devices are for devices of
// their type and pass over others, as they do with NVIDIA's driver; those for shares are for all.
func (c *config) suits(s gpu.Shape) bool {
	return !c.params.Exclusive() || c.params.ExclusiveOf == typeOf(s)
}

// checkKind refuses parameters for another type of exclusive device than the device's.
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

// checkKinds refuses parameters for exclusive devices that fit none of a claim's devices. Prepare cannot rely on the requests that an
// entry names: the scheduler of Kubernetes 1.37 clears them in the allocation where they are all of the claim
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

// describeSource says where an author finds the configuration.
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
