// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// Classes are the cluster's DeviceClasses.
type Classes []*resourceapi.DeviceClass

// List returns them all.
func (c Classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

// Get returns one by name.
func (c Classes) Get(name string) (*resourceapi.DeviceClass, error) {
	i := slices.IndexFunc(c, func(d *resourceapi.DeviceClass) bool { return d.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no DeviceClass %q", name)
	}
	return c[i], nil
}

// SelectsDriver reports whether a class is for devices of a driver: whether it names it. What a class selects otherwise is not known.
func SelectsDriver(class *resourceapi.DeviceClass, driver string) bool {
	return slices.ContainsFunc(class.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
		return s.CEL != nil && strings.Contains(s.CEL.Expression, driver)
	})
}
