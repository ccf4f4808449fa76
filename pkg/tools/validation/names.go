// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/selector"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// namesOf are those of entries, with the driver as the domain of those that have none.
func namesOf(entries []nodeslices.Entry) map[string]bool {
	all := map[string]bool{}
	for _, e := range entries {
		name := e.Name
		if !strings.Contains(name, "/") {
			name = v1alpha1.Group + "/" + name
		}
		all[name] = true
	}
	return all
}

// names are those that devices of Cleave can have.
type names struct {
	attributes, capacities map[string]bool
	selectors              *selector.Cache
}

func newNames() *names {
	return &names{namesOf(nodeslices.Attributes()), namesOf(nodeslices.Capacities()), selector.NewCache()}
}

// checkNames notes attributes and capacities that no device of Cleave has, in requests for such devices: the API server admits them, and a
// node of a model refuses them.
func (v *validation) checkNames(o *object, n *names) {
	spec, path := specOf(o.Object)
	if spec == nil || o.wrong || v.Node != nil || v.Rules.Driver != v1alpha1.Group {
		return // of devices of another driver name nothing is known, what is wrong may be meant otherwise, and a node says it itself
	}
	var errs field.ErrorList
	for i := range spec.Devices.Requests {
		r, at := &spec.Devices.Requests[i], path.Child("requests").Index(i)
		if e := r.Exactly; e != nil && isOurClass(v.classes[e.DeviceClassName]) {
			errs = append(errs, n.request(e.Selectors, e.Capacity, at.Child("exactly"))...)
		}
		for j := range r.FirstAvailable {
			if s := &r.FirstAvailable[j]; isOurClass(v.classes[s.DeviceClassName]) {
				errs = append(errs, n.request(s.Selectors, s.Capacity, at.Child("firstAvailable").Index(j))...)
			}
		}
	}
	for i, c := range spec.Devices.Constraints {
		at := path.Child("constraints").Index(i)
		errs = append(errs, n.constraint(c.MatchAttribute, at.Child("matchAttribute"))...)
		errs = append(errs, n.constraint(c.DistinctAttribute, at.Child("distinctAttribute"))...)
	}
	for _, err := range errs {
		o.file.Notes = append(o.file.Notes, fmt.Sprintf("%s: %s: %s: %s", o.file.Path, o.name, err.Field, err.Detail))
	}
}

// isOurClass reports whether a class, nil where it is not known, selects devices of Cleave.
func isOurClass(class *resourceapi.DeviceClass) bool {
	return class != nil && resourcepool.SelectsDriver(class, v1alpha1.Group)
}

// request checks the names of one request.
func (n *names) request(
	selectors []resourceapi.DeviceSelector, capacity *resourceapi.CapacityRequirements, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	for i, s := range selectors {
		if s.CEL == nil {
			continue
		}
		compiled, err := n.selectors.Compile(s.CEL.Expression)
		if err != nil {
			continue // which was said
		}
		attributes, capacities := compiled[0].Reads()
		at := at.Child("selectors").Index(i).Child("cel", "expression")
		for _, name := range attributes {
			errs = append(errs, unknown(at, "attribute", name, n.attributes)...)
		}
		for _, name := range capacities {
			errs = append(errs, unknown(at, "capacity", name, n.capacities)...)
		}
	}
	if capacity == nil {
		return errs
	}
	var plain []string
	for name := range n.capacities {
		plain = append(plain, strings.TrimPrefix(name, v1alpha1.Group+"/"))
	}
	slices.Sort(plain)
	for _, name := range slices.Sorted(maps.Keys(capacity.Requests)) {
		at, amount := at.Child("capacity", "requests").Key(string(name)), capacity.Requests[name]
		switch {
		case !slices.Contains(plain, string(name)): // also with the domain, which devices do not write (compareDeviceCapacity of the allocator)
			near := strings.TrimPrefix(string(name), v1alpha1.Group+"/")
			if !slices.Contains(plain, near) {
				near = suggest.Nearest(near, plain)
			}
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "no device of Cleave has this capacity"+suggest.Question(near)))
		case name == gpu.CapacityMemory && amount.CmpInt64(leastMemory) < 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{},
				fmt.Sprintf("%s is in bytes, less than any device has: write a unit, such as Gi", &amount)))
		}
	}
	return errs
}

// leastMemory is less memory than anybody means, in bytes: amounts below the least of a share are rounded up to it.
const leastMemory = 1 << 20

// constraint checks the name of an attribute in Cleave's domain: others may be of the devices of other drivers.
func (n *names) constraint(name *resourceapi.FullyQualifiedName, at *field.Path) field.ErrorList {
	if name == nil || !strings.HasPrefix(string(*name), v1alpha1.Group+"/") {
		return nil
	}
	return unknown(at, "attribute", string(*name), n.attributes)
}

// unknown is the error of a name that is none of those there are.
func unknown(at *field.Path, what, name string, all map[string]bool) field.ErrorList {
	if all[name] {
		return nil
	}
	return field.ErrorList{field.Invalid(at, field.OmitValueType{},
		"no device of Cleave has the "+what+" "+name+suggest.Question(explain.Like(name, all)...))}
}
