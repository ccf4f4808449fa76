// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// resourcePrefix is that of all resources of the device plugin.
const resourcePrefix = "nvidia.com/"

// Resources and the suffix of shared ones, as the device plugin names them.
const (
	wholeResource = resourcePrefix + "gpu"
	sharedSuffix  = ".shared"
)

// kind is a value of the attribute "type" of published devices.
type kind string

// The kinds of devices.
const (
	kindGPU       kind = "gpu"
	kindMIG       kind = "mig"
	kindTimeSlice kind = "timeslice"
	kindMPS       kind = "mps"
	// Shares of partitions.
	kindMIGTimeSlice kind = "mig-timeslice"
	kindMIGMPS       kind = "mig-mps"
)

// class is a DeviceClass that serves an extended resource: a device is of it that one of the selectors selects.
type class struct {
	resource  string
	why       string
	selectors []selector
}

// selector selects devices by all that it says.
type selector struct {
	kind kind
	// profile is a profile's name, profileLike and productLike are patterns of names; empty for any.
	profile                  string
	profileLike, productLike pattern
	// indexes and uuids name GPUs; if both are empty, any GPU will do, else one that either list has.
	indexes []int32
	uuids   []string
}

// serve lets a resource be served by devices.
func (i *Import) serve(resource, why string, s selector) {
	c := i.classes[resource]
	if c == nil {
		c = &class{resource: resource, why: why}
		i.classes[resource] = c
	}
	if !slices.Contains(strings.Split(c.why, "; or "), why) {
		c.why += "; or " + why
	}
	if !slices.ContainsFunc(c.selectors, func(t selector) bool { return reflect.DeepEqual(s, t) }) {
		c.selectors = append(c.selectors, s)
	}
}

func (i *Import) sorted() []*class {
	return slices.SortedFunc(maps.Values(i.classes), func(a, b *class) int { return cmp.Compare(a.resource, b.resource) })
}

// name of the DeviceClass: the resource's own part, and where it comes from.
func (c *class) name(source string) string {
	return fmt.Sprintf("%s.%s.cleave.dev", strings.TrimPrefix(c.resource, resourcePrefix), source)
}

func (c *class) object(source, driver string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: c.name(source)},
		Spec: resourceapi.DeviceClassSpec{
			ExtendedResourceName: &c.resource,
			Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: c.expression(driver)}}},
		},
	}
}

// expression is the class in CEL. The driver comes first: devices of other drivers have no attributes of ours, and to read what is
// not there is an error.
func (c *class) expression(driver string) string {
	var any []string
	for _, s := range c.selectors {
		any = append(any, s.expression(driver))
	}
	choice := any[0]
	if len(any) > 1 {
		choice = "((" + strings.Join(any, ") || (") + "))"
	}
	return fmt.Sprintf("device.driver == %s && %s", quoted(driver), choice)
}

func (s selector) expression(driver string) string {
	attribute := func(name string) string { return fmt.Sprintf("device.attributes[%s].%s", quoted(driver), name) }
	all := []string{attribute("type") + " == " + quoted(string(s.kind))}
	if s.profile != "" {
		all = append(all, attribute("profile")+" == "+quoted(s.profile))
	}
	if s.profileLike.says() {
		all = append(all, s.profileLike.expression(attribute("profile")))
	}
	if s.productLike.says() {
		// The one attribute that a GPU may lack.
		all = append(all, fmt.Sprintf(`"productName" in device.attributes[%s]`, quoted(driver)),
			s.productLike.expression(attribute("productName")))
	}
	var named []string
	if len(s.indexes) > 0 {
		var list []string
		for _, n := range s.indexes {
			list = append(list, strconv.Itoa(int(n)))
		}
		named = append(named, fmt.Sprintf("%s in [%s]", attribute("index"), strings.Join(list, ", ")))
	}
	if len(s.uuids) > 0 {
		var list []string
		for _, u := range s.uuids {
			list = append(list, quoted(u))
		}
		named = append(named, fmt.Sprintf("%s in [%s]", attribute("uuid"), strings.Join(list, ", ")))
	}
	switch len(named) {
	case 0:
	case 1:
		all = append(all, named[0])
	default:
		all = append(all, "("+strings.Join(named, " || ")+")")
	}
	return strings.Join(all, " && ")
}

// quoted is a text as CEL writes it; all escapes of Go are CEL's, too.
func quoted(text string) string { return strconv.QuoteToASCII(text) }

// pattern is what the device plugin holds names against: text that must be in the name, with * for anything between
// (api/config/v1/resources.go, wildCardToRegexp: the expression has no anchors).
type pattern string

// maxPattern bounds a pattern in bytes, so that the expression of a class keeps the API's limit.
const maxPattern = 256

// says reports whether there are names that do not match.
func (p pattern) says() bool { return strings.Trim(string(p), "*") != "" }

// wildcard reports whether the pattern is more than a text.
func (p pattern) wildcard() bool { return strings.Contains(string(p), "*") }

// expression holds an attribute against the pattern.
func (p pattern) expression(attribute string) string {
	text := strings.Trim(string(p), "*")
	if !strings.Contains(text, "*") {
		return fmt.Sprintf("%s.contains(%s)", attribute, quoted(text))
	}
	var parts []string
	for _, part := range strings.Split(text, "*") {
		parts = append(parts, regexp.QuoteMeta(part))
	}
	return fmt.Sprintf("%s.matches(%s)", attribute, quoted(strings.Join(parts, ".*")))
}
