// SPDX-License-Identifier: Apache-2.0

// Package resourcegen makes random objects of resource.k8s.io/v1 as authors write them. randfill sets every field that the types
// have, so that a field of a later release comes without a change here. What is known of fields makes most values ones that the
// API server admits: about half of the objects have something wrong with them, mostly one thing.
package resourcegen

import (
	"fmt"
	"math"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"
)

func newFiller(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.4).NumElements(0, 3).Funcs(leaves()...).Funcs(structures()...)
}

// ClaimSpec of the seed is what a claim may ask of some classes. Selectors and constraints that few devices meet are rarer than in
// an Object, so that many such claims can be allocated. The same seed gives the same claim.
func ClaimSpec(seed int64, classes []string) resourceapi.ResourceClaimSpec {
	var spec resourceapi.ResourceClaimSpec
	newFiller(seed).Funcs(
		func(r *resourceapi.ExactDeviceRequest, c randfill.Continue) {
			exactRequest(r, c)
			r.DeviceClassName = oneOf(c, classes...)
			r.Selectors = seldom(c, r.Selectors)
			if c.Intn(4) > 0 {
				r.Capacity = nil
			}
		},
		func(r *resourceapi.DeviceSubRequest, c randfill.Continue) {
			subRequest(r, c)
			r.DeviceClassName = oneOf(c, classes...)
			r.Selectors = seldom(c, r.Selectors)
		},
		func(d *resourceapi.DeviceClaim, c randfill.Continue) {
			deviceClaim(d, c)
			d.Constraints = seldom(c, d.Constraints)
		},
	).Fill(&spec)
	return spec
}

// Object of the seed: a ResourceClaim, a ResourceClaimTemplate or a DeviceClass. The same seed gives the same object.
func Object(seed int64) runtime.Object {
	filler := newFiller(seed)
	switch seed % 4 {
	case 0:
		template := &resourceapi.ResourceClaimTemplate{}
		filler.Fill(template)
		template.TypeMeta = typeMeta("ResourceClaimTemplate")
		return template
	case 1:
		class := &resourceapi.DeviceClass{}
		filler.Fill(class)
		class.TypeMeta = typeMeta("DeviceClass")
		return class
	default:
		claim := &resourceapi.ResourceClaim{}
		filler.Fill(claim)
		claim.TypeMeta = typeMeta("ResourceClaim")
		return claim
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: kind}
}

// wrong reports whether a value is to be one that may not be admitted.
func wrong(c randfill.Continue) bool { return c.Intn(50) == 0 }

// seldom drops a list three times of four.
func seldom[T any](c randfill.Continue, list []T) []T {
	if c.Intn(4) > 0 {
		return nil
	}
	return list
}

func oneOf[T any](c randfill.Continue, values ...T) T { return values[c.Intn(len(values))] }

// words returns a function that sets a string to a usual value, or rarely to any of others.
func words[T ~string](usual, others []T) func(*T, randfill.Continue) {
	return func(s *T, c randfill.Continue) {
		*s = oneOf(c, usual...)
		if wrong(c) {
			*s = oneOf(c, others...)
		}
	}
}

// odd are strings that are no good name of something.
var odd = []string{
	"", "UPPER", "under_score", "-dash", "dot.", "a/b", "a/b/c", "über", "sp ace", " ", "\x00",
	strings.Repeat("a", 63), strings.Repeat("a", 64),
	strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 140) + "a", "7", "true", "null", "*", "a..b", "kubernetes.io/gpu", "example.com/",
}

// expressions of CEL, those that the API server admits and those that it may not.
var (
	expressions = []string{
		"true", `device.driver == "gpu.cleave.dev"`, `device.attributes["gpu.cleave.dev"].productName.startsWith("NVIDIA")`,
		`device.capacity["gpu.cleave.dev"].memory.compareTo(quantity("40Gi")) >= 0`, `"x" in device.attributes["gpu.cleave.dev"]`,
		`device.attributes["gpu.cleave.dev"].driverVersion.isGreaterThan(semver("570.0.0"))`, "device.allowMultipleAllocations",
		`device.attributes["gpu.cleave.dev"].?x.orValue(1) == 1`, `["a", "b"].exists(s, s == device.driver)`,
	}
	oddExpressions = []string{
		"", "1", `"true"`, "device", "devices", "device.attributes", `device.attributes["a"]`, "device.driver ==", "((((", `device.nothing`,
		`device.driver == 1`, `quantity("x").isInteger()`, "true // " + strings.Repeat("x", resourceapi.CELSelectorExpressionMaxLength),
		`"` + strings.Repeat("x", 3000) + `".matches(".*")`, `[1,2,3].all(a, [1,2,3].all(b, [1,2,3].all(c, device.driver.matches("a*b*c*"))))`,
		`device.driver.matches(device.driver)`, `device.attributes["x"].y.matches("(a+)+$")`,
		"\xff", "dyn(1)", `device.driver.replace("a", "b") == ""`,
	}
	parameters = []string{
		`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig","timeSlice":{"interval":"Long"}}`, `{}`, `{"a":{"b":[1,null]}}`,
	}
	oddParameters = []string{
		`[]`, `"text"`, `1`, `null`, `{"a":"` + strings.Repeat("x", resourceapi.OpaqueParametersMaxLength) + `"}`, `{"a":1,"a":2}`,
		`{"a":"` + strings.Repeat("x", resourceapi.OpaqueParametersMaxLength-len(`{"a":""}`)) + `"}`,
	}
	// A claim with a negative amount is admitted by the API server, and refused by Cleave whatever the class.
	quantities    = []string{"0", "1", "10", "1500m", "512Mi", "40Gi", "1e3"}
	oddQuantities = []string{"1e30", "9223372036854775807", "1n", "-0", "0.5", "1Ki"}
)

// leaves are how values of single types are made.
func leaves() []any {
	counts, oddCounts := []int64{0, 1, 1, 2, 8}, []int64{-1, 33, math.MaxInt64, math.MinInt64}
	return []any{
		words([]string{"a", "b", "gpu", "node-1", "x.example.com"}, odd),
		words([]resourceapi.QualifiedName{"memory", "cores", "gpu.cleave.dev/memory", "x_1"},
			[]resourceapi.QualifiedName{"", "/", "a/", "/a", "a-b", "a/b/c", "A.example.com/memory", "1a", "über",
				resourceapi.QualifiedName(strings.Repeat("a", 33))}),
		words([]resourceapi.FullyQualifiedName{"gpu.cleave.dev/nvlinkGroup", "resource.kubernetes.io/pcieRoot", "example.com/x_1"},
			[]resourceapi.FullyQualifiedName{"", "x", "/x", "example.com/", "example.com/a-b", "a/b/c", "Example.com/x", "a_b/x",
				resourceapi.FullyQualifiedName("example.com/" + strings.Repeat("a", 33)),
				resourceapi.FullyQualifiedName(strings.Repeat("a.", 32) + "a/x")}),
		words([]resourceapi.DeviceAllocationMode{"", resourceapi.DeviceAllocationModeExactCount, resourceapi.DeviceAllocationModeAll},
			[]resourceapi.DeviceAllocationMode{"all", "Some"}),
		words([]resourceapi.DeviceTolerationOperator{"", resourceapi.DeviceTolerationOpEqual, resourceapi.DeviceTolerationOpExists},
			[]resourceapi.DeviceTolerationOperator{"exists", "Some"}),
		words([]resourceapi.DeviceTaintEffect{"", resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute},
			[]resourceapi.DeviceTaintEffect{resourceapi.DeviceTaintEffectNone, "PreferNoSchedule"}),
		func(n *int64, c randfill.Continue) {
			*n = oneOf(c, counts...)
			if wrong(c) {
				*n = oneOf(c, oddCounts...)
			}
		},
		func(q *resource.Quantity, c randfill.Continue) {
			var text string
			words(quantities, oddQuantities)(&text, c)
			*q = resource.MustParse(text)
		},
		func(e *resourceapi.CELDeviceSelector, c randfill.Continue) {
			words(expressions, oddExpressions)(&e.Expression, c)
		},
		func(raw *runtime.RawExtension, c randfill.Continue) {
			var text string
			words(parameters, oddParameters)(&text, c)
			if !wrong(c) {
				raw.Raw = []byte(text)
			}
		},
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			c.Fill(&m.Name)
			c.Fill(&m.Labels)
			c.Fill(&m.Annotations)
			if wrong(c) {
				c.Fill(&m.GenerateName)
				c.Fill(&m.Finalizers)
			}
		},
		// The API server drops it from what is created.
		func(*resourceapi.ResourceClaimStatus, randfill.Continue) {},
	}
}

// long makes a list longer than it may be, at times.
func long[T any](c randfill.Continue, list *[]T, most int) {
	if c.Intn(200) > 0 {
		return
	}
	for want := most + c.Intn(2); len(*list) < want; {
		var another T
		c.Fill(&another)
		*list = append(*list, another)
	}
}

// structures are how values are made of which one field says what another may be.
func structures() []any {
	return []any{
		func(s *resourceapi.DeviceSelector, c randfill.Continue) {
			if !wrong(c) {
				s.CEL = &resourceapi.CELDeviceSelector{}
				c.Fill(s.CEL)
			}
		},
		func(d *resourceapi.DeviceConstraint, c randfill.Continue) {
			c.FillNoCustom(d)
			var name resourceapi.FullyQualifiedName
			c.Fill(&name)
			if wrong(c) {
				return
			}
			if d.MatchAttribute, d.DistinctAttribute = &name, nil; c.Bool() {
				d.MatchAttribute, d.DistinctAttribute = nil, &name
			}
		},
		func(d *resourceapi.DeviceConfiguration, c randfill.Continue) {
			if !wrong(c) {
				d.Opaque = &resourceapi.OpaqueDeviceConfiguration{}
				c.Fill(d.Opaque)
			}
		},
		func(t *resourceapi.DeviceToleration, c randfill.Continue) {
			c.FillNoCustom(t)
			if wrong(c) {
				return
			}
			if t.Operator == resourceapi.DeviceTolerationOpExists {
				t.Value = ""
			}
			if t.Effect != resourceapi.DeviceTaintEffectNoExecute {
				t.TolerationSeconds = nil
			}
		},
		exactRequest, subRequest,
		func(r *resourceapi.DeviceRequest, c randfill.Continue) {
			c.FillNoCustom(r)
			if wrong(c) {
				return
			}
			if r.FirstAvailable = nil; c.Intn(3) > 0 {
				r.Exactly = &resourceapi.ExactDeviceRequest{}
				c.Fill(r.Exactly)
				return
			}
			r.Exactly, r.FirstAvailable = nil, make([]resourceapi.DeviceSubRequest, 1+c.Intn(3))
			c.Fill(&r.FirstAvailable[0])
			for i := range r.FirstAvailable {
				c.Fill(&r.FirstAvailable[i])
			}
			long(c, &r.FirstAvailable, resourceapi.FirstAvailableDeviceRequestMaxSize)
		},
		deviceClaim,
		func(s *resourceapi.ResourceClaimTemplateSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			if !wrong(c) {
				s.ObjectMeta = metav1.ObjectMeta{Labels: s.Labels, Annotations: s.Annotations}
			}
		},
		func(s *resourceapi.DeviceClassSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			long(c, &s.Selectors, resourceapi.DeviceSelectorsMaxSize)
			long(c, &s.Config, resourceapi.DeviceConfigMaxSize)
			if name := s.ExtendedResourceName; name != nil && !wrong(c) {
				*name = oneOf(c, "example.com/gpu", "nvidia.com/mig-1g.10gb", "a.b.c/D_e.f")
			}
		},
	}
}

func exactRequest(r *resourceapi.ExactDeviceRequest, c randfill.Continue) {
	c.FillNoCustom(r)
	long(c, &r.Selectors, resourceapi.DeviceSelectorsMaxSize)
	long(c, &r.Tolerations, resourceapi.DeviceTolerationsMaxLength)
	if r.AllocationMode == resourceapi.DeviceAllocationModeAll && !wrong(c) {
		r.Count = 0
	}
	if c.Intn(8) > 0 {
		r.AdminAccess = nil
	}
}

func subRequest(r *resourceapi.DeviceSubRequest, c randfill.Continue) {
	c.FillNoCustom(r)
	long(c, &r.Selectors, resourceapi.DeviceSelectorsMaxSize)
	long(c, &r.Tolerations, resourceapi.DeviceTolerationsMaxLength)
	if r.AllocationMode == resourceapi.DeviceAllocationModeAll && !wrong(c) {
		r.Count = 0
	}
}

// deviceClaim has names that are unique, and refers to them.
func deviceClaim(d *resourceapi.DeviceClaim, c randfill.Continue) {
	c.FillNoCustom(d)
	long(c, &d.Requests, resourceapi.DeviceRequestsMaxSize)
	long(c, &d.Constraints, resourceapi.DeviceConstraintsMaxSize)
	long(c, &d.Config, resourceapi.DeviceConfigMaxSize)
	var names []string
	for i := range d.Requests {
		r := &d.Requests[i]
		if !wrong(c) {
			r.Name = fmt.Sprintf("request-%d", i)
		}
		names = append(names, r.Name)
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			if !wrong(c) {
				s.Name = fmt.Sprintf("choice-%d", j)
			}
			names = append(names, r.Name+"/"+s.Name)
		}
	}
	refer := func(to *[]string) {
		if wrong(c) {
			return
		}
		*to = nil
		for _, name := range names {
			if c.Intn(3) == 0 {
				*to = append(*to, name)
			}
		}
	}
	for i := range d.Constraints {
		refer(&d.Constraints[i].Requests)
	}
	for i := range d.Config {
		refer(&d.Config[i].Requests)
	}
}
