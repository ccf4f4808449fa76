// SPDX-License-Identifier: Apache-2.0

package resourcepool

import (
	"fmt"
	"regexp"
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

// namedDriver finds the drivers that a selector names.
var namedDriver = regexp.MustCompile(`device\.driver\s*==\s*["']([^"']+)["']`)

// driversOf are the drivers that a class names; nil where it selects otherwise.
func driversOf(class *resourceapi.DeviceClass) (drivers []string) {
	for _, s := range class.Spec.Selectors {
		if s.CEL == nil {
			continue
		}
		for _, match := range namedDriver.FindAllStringSubmatch(s.CEL.Expression, -1) {
			drivers = append(drivers, match[1])
		}
	}
	return drivers
}

// ReadersOf are the drivers that read one of the parameters of a claim, in order: those of the classes of the requests that it is for. Nil
// where a class is not known, or does not name its driver.
func ReadersOf(devices *resourceapi.DeviceClaim, config *resourceapi.DeviceClaimConfiguration,
	class func(string) *resourceapi.DeviceClass) []string {
	var readers []string
	for i := range devices.Requests {
		r := &devices.Requests[i]
		isFor := func(name string) bool { return name == r.Name || strings.HasPrefix(name, r.Name+"/") }
		if len(config.Requests) > 0 && !slices.ContainsFunc(config.Requests, isFor) {
			continue
		}
		var names []string
		if r.Exactly != nil {
			names = append(names, r.Exactly.DeviceClassName)
		}
		for j := range r.FirstAvailable {
			names = append(names, r.FirstAvailable[j].DeviceClassName)
		}
		for _, name := range names {
			c := class(name)
			if c == nil {
				return nil
			}
			drivers := driversOf(c)
			if drivers == nil {
				return nil
			}
			readers = append(readers, drivers...)
		}
	}
	slices.Sort(readers)
	return slices.Compact(readers)
}
