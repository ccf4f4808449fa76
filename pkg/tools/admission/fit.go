// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/api/parameters"
	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Types of devices that classes of Cleave select (attribute type).
const (
	typeGPU          = "gpu"
	typeMIG          = "mig"
	typeTimeSlice    = "timeslice"
	typeMPS          = "mps"
	typeMIGTimeSlice = "mig-timeslice"
	typeMIGMPS       = "mig-mps"
)

// typeOf is the type of the devices of one of Cleave's classes, by its name; empty for other classes, whose selectors cannot
// be seen here.
func typeOf(class string) string {
	name, ours := strings.CutSuffix(class, ".cleave.dev")
	switch {
	case !ours:
		return ""
	case slices.Contains([]string{typeGPU, typeMIG, typeTimeSlice, typeMPS, typeMIGTimeSlice, typeMIGMPS}, name):
		return name
	case strings.HasPrefix(name, "mig-"):
		return typeMIG
	default:
		return ""
	}
}

// MostMemory is the most memory that a request can ask of any GPU: none has 2 TiB. It must not be changed.
var MostMemory = resource.MustParse("2Ti")

// mostCores is the most of a GPU's cores, in percent, that a request can ask for.
const mostCores = 100

// mostOf is the most of a capacity that a device of a type can have; nil where it has none of that name, not known where any
// amount may fit.
func mostOf(deviceType, capacity string) (most *resource.Quantity, known bool) {
	number := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
	switch capacity {
	case "memory":
		return &MostMemory, true
	case "cores":
		if deviceType == typeMPS || deviceType == typeMIGMPS {
			return number(mostCores), true
		}
		return nil, true
	case "shares":
		switch deviceType {
		case typeMPS, typeMIGMPS:
			return number(v1alpha1.MaxMPSShares), true
		case typeTimeSlice, typeMIGTimeSlice:
			return number(v1alpha1.MaxTimeSliceShares), true
		}
		return nil, true
	default:
		return nil, false
	}
}

// choice is a request, or one of its alternatives.
type choice struct {
	ref      string // as a configuration names it
	class    string
	mode     resourceapi.DeviceAllocationMode
	count    int64
	capacity *resourceapi.CapacityRequirements
	path     *field.Path
}

// choicesOf are the alternatives of a request, the one of an exact request.
func choicesOf(r *resourceapi.DeviceRequest, path *field.Path) []choice {
	var all []choice
	if e := r.Exactly; e != nil {
		all = append(all, choice{r.Name, e.DeviceClassName, e.AllocationMode, e.Count, e.Capacity, path.Child("exactly")})
	}
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		all = append(all, choice{r.Name + "/" + s.Name, s.DeviceClassName, s.AllocationMode, s.Count, s.Capacity,
			path.Child("firstAvailable").Index(i)})
	}
	return all
}

// asks is how much of a capacity is asked for by its plain name or with the driver's in front; nil where nothing is said.
func (c *choice) asks(driver, capacity string) *resource.Quantity {
	if c.capacity == nil {
		return nil
	}
	for _, name := range []string{capacity, driver + "/" + capacity} {
		if q, ok := c.capacity.Requests[resourceapi.QualifiedName(name)]; ok {
			return &q
		}
	}
	return nil
}

// amounts checks the amounts that a request for Cleave's devices asks of each.
func (r Rules) amounts(c *choice) field.ErrorList {
	deviceType := typeOf(c.class)
	if c.capacity == nil {
		return nil
	}
	var errs field.ErrorList
	at := c.path.Child("capacity", "requests")
	for _, name := range []string{"memory", "cores", "shares"} {
		for _, key := range []string{name, r.Driver + "/" + name} {
			q, asked := c.capacity.Requests[resourceapi.QualifiedName(key)]
			if !asked {
				continue
			}
			if q.Sign() < 0 || deviceType != "" && q.Sign() == 0 {
				errs = append(errs, field.Invalid(at.Key(key), q.String(), "must be more than zero"))
				continue
			}
			most, known := mostOf(deviceType, name)
			switch {
			case deviceType == "" || !known:
			case most == nil:
				errs = append(errs, field.Invalid(at.Key(key), q.String(),
					fmt.Sprintf("devices of class %s have no capacity %s: remove it, or use class %s.cleave.dev", c.class, name, typeMPS)))
			case q.Cmp(*most) > 0:
				words := most.String()
				if name != "memory" {
					words = strconv.FormatInt(most.Value(), 10) // not 1k
				}
				errs = append(errs, field.Invalid(at.Key(key), q.String(), "no GPU has more than "+words))
			}
		}
	}
	return errs
}

// configuration is an opaque configuration of ours that could be decoded.
type configuration struct {
	requests []string
	params   *parameters.Parameters
	path     *field.Path // of the parameters
}

func (c *configuration) covers(of *choice) bool {
	return len(c.requests) == 0 || slices.Contains(c.requests, of.ref) || slices.Contains(c.requests, resourceclaim.BaseRequestRef(of.ref))
}

// fit refuses parameters that no device of the class can be given. Prepare uses the last configuration that is for a
// device; one that suits any of a request's alternatives is let through.
func (r Rules) fit(configs []configuration, requests [][]choice) field.ErrorList {
	var errs field.ErrorList
	for _, choices := range requests {
		for i := range configs {
			var why *field.Error
			suits := false
			for j := range choices {
				if !configs[i].covers(&choices[j]) || slices.ContainsFunc(configs[i+1:], func(c configuration) bool { return c.covers(&choices[j]) }) {
					continue
				}
				if wrong := r.misfit(&configs[i], &choices[j]); wrong == nil {
					suits = true
				} else if why == nil {
					why = wrong
				}
			}
			if why != nil && !suits {
				errs = append(errs, why)
			}
		}
	}
	return errs
}

// misfit says why parameters cannot be given to a device of a choice's class; nil where they can, or nobody knows.
func (r Rules) misfit(c *configuration, of *choice) *field.Error {
	if c.params.Exclusive() {
		return nil
	}
	deviceType := typeOf(of.class)
	for _, part := range []struct {
		name string
		set  bool
		of   string
	}{{"timeSlice", c.params.TimeSlice != nil, typeTimeSlice}, {"mps", c.params.MPS != nil, typeMPS}} {
		if part.set && deviceType != "" && part.of != strings.TrimPrefix(deviceType, "mig-") {
			return field.Invalid(c.path.Child(part.name), field.OmitValueType{}, fmt.Sprintf(
				"request %q is of class %s, and %s is for class %s.cleave.dev: remove it, or name the requests that it is for",
				of.ref, of.class, part.name, part.of))
		}
	}
	if deviceType == typeMIGTimeSlice && c.params.TimeSlice != nil && c.params.TimeSlice.Interval != "" {
		return field.Forbidden(c.path.Child("timeSlice", "interval"), fmt.Sprintf("request %q is of class %s, and a GPU has one interval "+
			"for all of its partitions, so none can have its own: remove it", of.ref, of.class))
	}
	if c.params.MPS == nil {
		return nil
	}
	if p, cores := c.params.MPS.ActiveThreadPercentage, of.asks(r.Driver, "cores"); p != nil && cores != nil && cores.CmpInt64(int64(*p)) < 0 {
		return field.Invalid(c.path.Child("mps", "activeThreadPercentage"), *p,
			fmt.Sprintf("request %q asks for %s cores: parameters can lower what a request asks for, not raise it", of.ref, cores))
	}
	limit := c.params.MPS.PinnedDeviceMemoryLimit
	if limit == nil {
		return nil
	}
	at := c.path.Child("mps", "pinnedDeviceMemoryLimit")
	if limit.Cmp(MostMemory) > 0 {
		return field.Invalid(at, limit.String(), fmt.Sprintf("no GPU has more than %s", &MostMemory))
	}
	if memory := of.asks(r.Driver, "memory"); memory != nil && memory.Cmp(*limit) < 0 {
		return field.Invalid(at, limit.String(),
			fmt.Sprintf("request %q asks for %s of memory: parameters can lower what a request asks for, not raise it", of.ref, memory))
	}
	return nil
}
