// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"fmt"
	"strconv"
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
	a, ok := ValueOf(d.Attributes, driver, domain, id)
	if !ok || a.StringValue == nil && a.IntValue == nil && a.BoolValue == nil && a.VersionValue == nil {
		return "", ok
	}
	var b strings.Builder
	WriteValue(&b, &a)
	return b.String(), true
}

// ValueOf is the attribute or capacity of a domain and an identifier, which need not have the driver's own domain.
func ValueOf[V any](all map[resourceapi.QualifiedName]V, driver, domain, id string) (V, bool) {
	v, ok := all[resourceapi.QualifiedName(domain+"/"+id)]
	if !ok && domain == driver {
		v, ok = all[resourceapi.QualifiedName(id)]
	}
	return v, ok
}

// WriteValue writes the type and value of an attribute.
func WriteValue(b *strings.Builder, a *resourceapi.DeviceAttribute) {
	switch {
	case a.StringValue != nil:
		b.WriteByte('s')
		b.WriteString(*a.StringValue)
	case a.IntValue != nil:
		b.WriteByte('i')
		b.WriteString(strconv.FormatInt(*a.IntValue, 10))
	case a.BoolValue != nil:
		b.WriteString(strconv.FormatBool(*a.BoolValue))
	case a.VersionValue != nil:
		b.WriteByte('v')
		b.WriteString(*a.VersionValue)
	default:
		fmt.Fprintf(b, "l%q%v%v%q", a.StringValues, a.IntValues, a.BoolValues, a.VersionValues)
	}
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

// AddAll adds all there are.
func (a *Attributes) AddAll() { a.all = true }

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
