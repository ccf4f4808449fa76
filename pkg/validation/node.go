// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/explain"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// Node is what policies and claims are checked against.
type Node struct {
	// Words for people, such as "an hgx-h100 node".
	Words string
	GPUs  *gpu.Node
	Means policy.Means
	// Model reports that there is no such node yet: GPUs are in the MIG mode that the policy needs.
	Model bool
}

// onNode holds policies against the node's boards, and claims against the devices that the node would publish.
func (v *validation) onNode(ctx context.Context) error {
	p, err := v.checkPolicies()
	if err != nil {
		return err
	}
	if err := v.addClasses(); err != nil {
		return err
	}
	if p == nil {
		return nil // it is wrong, which was said
	}
	node := v.Node.GPUs
	if v.Node.Model {
		node, _ = policy.InMIGMode(p, node)
	}
	devices := devicesOf(policy.Apply(p, node, v.Node.Means), v.Rules.Driver)
	for _, o := range v.objects {
		if spec, path := specOf(o.Object); spec != nil {
			v.checkClaim(ctx, o, spec, path, devices)
		}
	}
	return nil
}

// checkPolicies holds policies against the node: the one that is asked for, or all. It returns the one that the node has,
// nil if that is wrong.
func (v *validation) checkPolicies() (*v1alpha1.NodePolicy, error) {
	var mine *v1alpha1.NodePolicy
	broken, known := false, []string{}
	for _, set := range v.sets {
		known = append(known, set.Names()...)
		for _, name := range set.Names() {
			if v.PolicyName != "" && name != v.PolicyName {
				continue
			}
			_, p, err := set.Select(name)
			if err != nil {
				return nil, err
			}
			where := set.File(name)
			if err := policy.Check(p, v.Node.GPUs); err != nil {
				for _, problem := range v1alpha1.ProblemsOf(fmt.Errorf("%s: policy %q: on %s: %w", where, name, v.Node.Words, err)) {
					v.at[where].Problems = append(v.at[where].Problems, problem.Error())
				}
			}
			if mine == nil && (name == v.PolicyName || v.PolicyName == "" && name == v1alpha1.DefaultPolicy) {
				mine = p
			}
		}
		if _, _, err := set.Select(v.PolicyName); err != nil && set.File(cmp.Or(v.PolicyName, v1alpha1.DefaultPolicy)) != "" {
			broken = true
		}
	}
	switch {
	case mine != nil || broken:
		return mine, nil
	case v.PolicyName == "":
		return &v1alpha1.NodePolicy{}, nil
	default:
		slices.Sort(known)
		return nil, fmt.Errorf("there is no policy %q: choose one of %s", v.PolicyName, strings.Join(slices.Compact(known), ", "))
	}
}

// devicesOf are the devices that a node publishes.
func devicesOf(node *policy.Node, driver string) []cel.Device {
	var devices []cel.Device
	for _, s := range publish.Objects(node, driver, "node").Items {
		for _, d := range s.Spec.Devices {
			devices = append(devices, cel.Device{Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations,
				Attributes: d.Attributes, Capacity: d.Capacity})
		}
	}
	return devices
}

// checkClaim finds the requests of a claim that no device of the node fits.
func (v *validation) checkClaim(ctx context.Context, o *object, spec *resourceapi.ResourceClaimSpec,
	path *field.Path, devices []cel.Device) {
	for i := range spec.Devices.Requests {
		at := path.Child("requests").Index(i)
		var why []string
		fits := false
		alternatives := requestsOf(&spec.Devices.Requests[i], at)
		for _, r := range alternatives {
			c := v.classes[r.class]
			if c == nil {
				o.file.Notes = append(o.file.Notes,
					fmt.Sprintf("%s: %s: %s.deviceClassName: DeviceClass %q is neither in these files nor one of Cleave's: not checked against %s",
						o.file.Path, o.name, r.path, r.class, v.Node.Words))
				fits = true
				continue
			}
			reason, err := v.misfit(ctx, &r, c, devices)
			if err != nil {
				o.problems(field.ErrorList{err})
				fits = true
				continue
			}
			if fits = fits || reason == ""; reason != "" {
				why = append(why, reason)
			}
		}
		if !fits && len(alternatives) > 0 {
			o.problems(field.ErrorList{field.Invalid(at, spec.Devices.Requests[i].Name,
				fmt.Sprintf("no device of %s fits: %s", v.Node.Words, strings.Join(why, "; ")))})
		}
	}
}

// misfit says why no device fits a request; empty where enough do. The error is of a selector that fails on a device, which
// keeps the scheduler from allocating anything for the claim.
func (v *validation) misfit(ctx context.Context, r *request, c *class, devices []cel.Device) (string, *field.Error) {
	ofClass, fault := filter(ctx, c.selectors(), devices)
	if fault != nil {
		fault.Detail = fmt.Sprintf("selector of class %s: %s", r.class, fault.Detail)
		fault.Field = r.path.Child("deviceClassName").String()
		return "", fault
	}
	if len(ofClass) == 0 {
		return fmt.Sprintf("none of its devices (%s) is of class %s", kinds(devices), r.class), nil
	}
	selectors, _ := compile(r.selectors, r.path.Child("selectors"))
	selected, fault := filter(ctx, selectors, ofClass)
	if fault != nil {
		return "", fault
	}
	if len(selected) == 0 {
		return fmt.Sprintf("%d are of class %s, and none matches the selectors", len(ofClass), r.class), nil
	}
	roomy := selected
	if r.capacity != nil {
		for _, name := range sorted(r.capacity.Requests) {
			want := r.capacity.Requests[name]
			var most *resource.Quantity
			roomy = slices.DeleteFunc(slices.Clone(roomy), func(d cel.Device) bool {
				has := capacityOf(&d, name)
				if has != nil && (most == nil || has.Cmp(*most) > 0) {
					most = has
				}
				return has == nil || has.Cmp(want) < 0
			})
			if len(roomy) == 0 && most == nil {
				return fmt.Sprintf("%d match, and none has a capacity %s", len(selected), name), nil
			}
			if len(roomy) == 0 {
				return fmt.Sprintf("%d match, and none has %s of %s: the most is %s", len(selected), &want, name, most), nil
			}
		}
	}
	if count := max(r.count, 1); r.mode != resourceapi.DeviceAllocationModeAll && count > int64(len(roomy)) {
		return fmt.Sprintf("%d devices are asked for, and %d fit", count, len(roomy)), nil
	}
	return "", nil
}

// filter are the devices that all selectors match, in the order in which the scheduler asks them.
func filter(ctx context.Context, selectors []selector, devices []cel.Device) ([]cel.Device, *field.Error) {
	var matching []cel.Device
	for _, d := range devices {
		matches := true
		for _, s := range selectors {
			ok, _, err := s.DeviceMatches(ctx, d)
			if err != nil {
				return nil, field.Invalid(s.path, s.Expression,
					fmt.Sprintf("fails on a device of type %s, so that nothing is allocated: %v", kindOf(&d), err))
			}
			if matches = ok; !ok {
				break
			}
		}
		if matches {
			matching = append(matching, d)
		}
	}
	return matching, nil
}

// capacityOf is the most that can be requested of a device's capacity, by its plain name or with the driver's in front.
func capacityOf(d *cel.Device, name resourceapi.QualifiedName) *resource.Quantity {
	plain := resourceapi.QualifiedName(strings.TrimPrefix(string(name), d.Driver+"/"))
	c, ok := d.Capacity[plain]
	if !ok {
		return nil
	}
	most, _ := explain.Reachable(&c, c.Value)
	return &most
}

// kindOf is the type of a device, and of a partition the profile, too.
func kindOf(d *cel.Device) string {
	var words []string
	for _, name := range []resourceapi.QualifiedName{"type", "profile"} {
		if value := d.Attributes[name].StringValue; value != nil {
			words = append(words, *value)
		}
	}
	return strings.Join(words, " ")
}

// kinds counts devices by what they are, in the order in which they are published.
func kinds(devices []cel.Device) string {
	var order []string
	count := map[string]int{}
	for i := range devices {
		kind := kindOf(&devices[i])
		if count[kind]++; count[kind] == 1 {
			order = append(order, kind)
		}
	}
	for i, kind := range order {
		order[i] = fmt.Sprintf("%d %s", count[kind], kind)
	}
	if len(order) == 0 {
		return "it has none"
	}
	return strings.Join(order, ", ")
}

// sorted are the names of requests in order.
func sorted(requests map[resourceapi.QualifiedName]resource.Quantity) []resourceapi.QualifiedName {
	names := make([]resourceapi.QualifiedName, 0, len(requests))
	for name := range requests {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
