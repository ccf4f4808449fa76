// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"

	"github.com/google/go-cmp/cmp"
)

func TestClasses_APILimits(t *testing.T) {
	all := manifestClasses(t)
	names, resources := map[string]bool{}, map[string]bool{}
	for _, c := range all {
		if msgs := validation.IsDNS1123Subdomain(c.Name); len(msgs) > 0 || names[c.Name] {
			t.Errorf("class %q: twice, or %v", c.Name, msgs)
		}
		names[c.Name] = true
		checkSelectors(t, c.Spec.Selectors)
		r := c.Spec.ExtendedResourceName
		if r == nil {
			continue
		}
		// As k8s.io/component-helpers' IsExtendedResourceName: quotas prefix the name with "requests.".
		msgs := validation.IsQualifiedName(*r)
		msgs = append(msgs, validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+*r)...)
		if len(msgs) > 0 || !strings.HasPrefix(*r, "nvidia.com/") || resources[*r] {
			t.Errorf("class %q: extended resource %q: twice, or %v", c.Name, *r, msgs)
		}
		resources[*r] = true
	}
}

// TestClasses_Selection looks at every class on every node model and on every board, node model or not.
func TestClasses_Selection(t *testing.T) {
	nodes := map[string]*policy.Node{}
	for _, name := range simulated.NodeModels() {
		nodes["model "+name] = offeredNode(t, name)
	}
	boards, err := sim.Boards()
	must(t, err)
	for _, b := range boards {
		nodes["board "+b.Name] = offered(boardNode(t, b.Name))
	}
	all := manifestClasses(t)
	for name, node := range nodes {
		t.Run(name, func(t *testing.T) {
			for _, s := range Cleave(node) {
				for i := range s.Spec.Devices {
					checkClassesOf(t, all, s.Spec.Driver, &s.Spec.Devices[i])
				}
			}
		})
	}
}

// checkClassesOf checks that a device is in the class of its type and, if it is a partition, in that of its profile,
// and in no other.
func checkClassesOf(t *testing.T, all []*resourceapi.DeviceClass, driver string, d *resourceapi.Device) {
	t.Helper()
	kind := *d.Attributes["type"].StringValue
	want := []string{kind + ".cleave.dev"}
	if kind == "mig" {
		profile := strings.ReplaceAll(*d.Attributes["profile"].StringValue, "+", ".")
		want = []string{"mig-" + profile + ".cleave.dev", "mig.cleave.dev"}
	}
	if got := matching(t, all, driver, d); !cmp.Equal(want, got) {
		t.Errorf("device %s is in classes %v, want %v", d.Name, got, want)
	}
	if got := matching(t, all, "gpu.example.com", d); len(got) > 0 {
		t.Errorf("the same device of another driver is in classes %v", got)
	}
}

var expressions = cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})

// matching lists the classes that select a device, sorted.
func matching(t *testing.T, all []*resourceapi.DeviceClass, driver string, d *resourceapi.Device) []string {
	t.Helper()
	var names []string
	for _, c := range all {
		selects := true
		for _, s := range c.Spec.Selectors {
			ok, _, err := expressions.GetOrCompile(s.CEL.Expression).DeviceMatches(t.Context(),
				cel.Device{Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity})
			if err != nil {
				t.Errorf("class %s, device %s: %v", c.Name, d.Name, err)
			}
			selects = selects && ok
		}
		if selects {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}
