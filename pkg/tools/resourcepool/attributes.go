// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// Identifier is the name of an attribute or capacity without its domain.
func Identifier[S ~string](name S) string {
	return string(name[strings.LastIndexByte(string(name), '/')+1:])
}

// Attribute returns an attribute by name, with or without the driver's domain, which are equivalent in the API.
func Attribute(driver string, d *resourceapi.Device, name string) resourceapi.DeviceAttribute {
	if a, ok := d.Attributes[resourceapi.QualifiedName(name)]; ok {
		return a
	}
	return d.Attributes[resourceapi.QualifiedName(driver+"/"+name)]
}

// Value is an attribute by its name with a domain, as text that is equal for equal values of one type; empty for a list.
func Value(driver string, d *resourceapi.Device, attribute string) (text string, ok bool) {
	domain, id, _ := strings.Cut(attribute, "/")
	a, ok := valueOf(d.Attributes, driver, name{attributesField, domain, id})
	if !ok || a.StringValue == nil && a.IntValue == nil && a.BoolValue == nil && a.VersionValue == nil {
		return "", ok
	}
	var b strings.Builder
	writeValue(&b, &a)
	return b.String(), true
}

// Text is the first attribute of some names that has a string.
func Text(driver string, d *resourceapi.Device, names ...string) string {
	for _, name := range names {
		if a := Attribute(driver, d, name); a.StringValue != nil {
			return *a.StringValue
		}
	}
	return ""
}

// IsShared reports whether several claims can be allocated a device at once.
func IsShared(d *resourceapi.Device) bool {
	return d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
}

// Attributes are identifiers of attributes that somebody looks at.
type Attributes struct {
	identifiers map[string]bool
	all         bool
}

// NewAttributes are attributes by their identifiers.
func NewAttributes(identifiers ...string) *Attributes {
	a := &Attributes{identifiers: map[string]bool{}}
	a.Add(identifiers...)
	return a
}

// Add adds identifiers.
func (a *Attributes) Add(identifiers ...string) {
	for _, i := range identifiers {
		a.identifiers[i] = true
	}
}

// AddSelectors adds what selectors may look at.
func (a *Attributes) AddSelectors(c *Selectors, all []resourceapi.DeviceSelector) {
	for _, selector := range all {
		if selector.CEL == nil {
			continue
		}
		compiled, err := c.Compile(selector.CEL.Expression)
		if err != nil {
			continue // it selects nothing
		}
		a.all = a.all || !compiled[0].exact
		for _, n := range compiled[0].names {
			a.Add(n.id)
		}
	}
}

// keep leaves out of a device what nobody looks at.
func (a *Attributes) keep(d *resourceapi.Device) {
	if a.all {
		return
	}
	some := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range d.Attributes {
		if a.identifiers[Identifier(name)] {
			some[name] = value
		}
	}
	d.Attributes = some
}
