// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/selector"
)

// selection is an expression, and the driver and the content of slices.
type selection struct {
	expression, driver string
	content            int
}

// matches says of each device of a slice whether an expression selects it.
func (c *Cluster) matches(ctx context.Context, s *resourceapi.ResourceSlice, expression string) []bool {
	key := selection{expression, s.Spec.Driver, c.slices.Content(s)}
	if known := c.selected[key]; known != nil {
		return known
	}
	compiled, err := selectors.Compile(expression)
	all := make([]bool, len(s.Spec.Devices))
	for i := range s.Spec.Devices {
		if err == nil { // else it selects none
			all[i], _ = selector.MatchAll(ctx, compiled, s.Spec.Driver, &s.Spec.Devices[i])
		}
	}
	c.selected[key] = all
	return all
}

// selects returns the first selector that a device does not match, or none.
func (c *Cluster) selects(ctx context.Context, s *resourceapi.ResourceSlice, device int, by []resourceapi.DeviceSelector) (string, bool) {
	for _, sel := range by {
		if sel.CEL != nil && !c.matches(ctx, s, sel.CEL.Expression)[device] {
			return sel.CEL.Expression, false
		}
	}
	return "", true
}

// mismatch finds the part of an expression that refuses a device, and the attributes it looks at.
func (c *Cluster) mismatch(ctx context.Context, s *resourceapi.ResourceSlice, device int, of, expression string) *Mismatch {
	m := &Mismatch{Of: of, Expression: expression}
	parts := []string{expression}
	if whole, err := selectors.Compile(expression); err == nil {
		parts = whole[0].Terms()
	}
	for _, part := range parts {
		if c.matches(ctx, s, part)[device] {
			continue
		}
		if len(parts) > 1 {
			m.Part = part
		}
		selector, err := selectors.Compile(part)
		if err != nil {
			break
		}
		for _, name := range selector[0].Words() {
			value := valueOf(s.Spec.Driver, &s.Spec.Devices[device], name)
			if value != "" && !slices.ContainsFunc(m.Attributes, func(v Values) bool { return v.Name == name }) {
				m.Attributes = append(m.Attributes, Values{Name: name, Values: []string{value}})
			}
		}
		break
	}
	return m
}

// valueOf is an attribute or capacity of a device for people; empty if it has none.
func valueOf(driver string, d *resourceapi.Device, name string) string {
	for _, key := range []resourceapi.QualifiedName{resourceapi.QualifiedName(name), resourceapi.QualifiedName(driver + "/" + name)} {
		if c, ok := d.Capacity[key]; ok {
			return c.Value.String()
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Attributes)) {
		if resourcepool.Identifier(key) != name {
			continue
		}
		if a := d.Attributes[key]; a.StringValue != nil {
			return fmt.Sprintf("%q", *a.StringValue)
		}
		return inspect.AttributeText(d.Attributes[key])
	}
	return ""
}
