// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// kueueObject is what is looked at of an object of Kueue.
type kueueObject struct {
	Spec struct {
		ResourceGroups []struct {
			Flavors []struct{ Resources []struct{ Name string } }
		}
	}
	Resources struct{ DeviceClassMappings []kueueMapping }
}

type kueueMapping struct {
	Name             string
	DeviceClassNames []string
	Sources          []struct{ Counter, Capacity *kueueSource }
}

type kueueSource struct {
	Name, Driver   string
	DeviceSelector resourceapi.DeviceSelector
}

// TestQueues_Examples compares the examples for Kueue with what Cleave publishes. That Kueue takes them is tested in e2e/scheduling.
func TestQueues_Examples(t *testing.T) {
	// Queues have quotas for what their configuration maps.
	for _, tt := range []struct{ configuration, queues string }{
		{"configuration-devices", "queues-priority"},
		{"configuration-amounts", "queues-amounts"},
		{"configuration-shares", ""},
	} {
		t.Run(tt.configuration, func(t *testing.T) {
			mapped := sets.New[string]()
			for _, o := range kueueObjects(t, tt.configuration) {
				for _, m := range o.Resources.DeviceClassMappings {
					mapped.Insert(m.Name)
					checkMapping(t, m)
				}
			}
			if mapped.Len() == 0 {
				t.Error("it maps no DeviceClass")
			}
			if tt.queues != "" {
				checkQuotas(t, mapped, kueueObjects(t, tt.queues))
			}
		})
	}
}

func kueueObjects(t *testing.T, name string) (objects []kueueObject) {
	t.Helper()
	for document := range bytes.SplitSeq(readFile(t, filepath.Join(examplesDir, "kueue", name+".yaml")), []byte("\n---\n")) {
		var o kueueObject
		must(t, yaml.Unmarshal(document, &o))
		objects = append(objects, o)
	}
	return objects
}

// checkMapping checks that a mapping names classes of Cleave, and that Kueue finds what it charges on devices of each of them.
func checkMapping(t *testing.T, m kueueMapping) {
	t.Helper()
	published := Cleave(offeredNode(t, "hgx-h100", v1alpha1.Rule{Publish: &v1alpha1.PublishPolicy{Counters: v1alpha1.QuotaCounters()}}))
	all := manifestClasses(t)
	for _, name := range m.DeviceClassNames {
		if !slices.ContainsFunc(all, func(c *resourceapi.DeviceClass) bool { return c.Name == name }) {
			t.Errorf("%s: there is no DeviceClass %s", m.Name, name)
		}
		for _, source := range m.Sources {
			charged := 0
			for _, s := range published {
				for i := range s.Spec.Devices {
					d := &s.Spec.Devices[i]
					if slices.Contains(matching(t, all, s.Spec.Driver, d), name) && charges(t, s.Spec.Driver, d, source.Counter, source.Capacity) {
						charged++
					}
				}
			}
			if charged == 0 {
				t.Errorf("%s: no device of class %s has what is charged", m.Name, name)
			}
		}
	}
}

// charges reports whether Kueue charges a device by a counter or by a capacity.
func charges(t *testing.T, driver string, d *resourceapi.Device, counter, capacity *kueueSource) bool {
	t.Helper()
	source := counter
	if source == nil {
		source = capacity
	}
	// Kueue compiles without the feature of consumable capacity.
	compiled := cel.NewCache(1, cel.Features{}).GetOrCompile(source.DeviceSelector.CEL.Expression)
	if compiled.Error != nil {
		t.Fatal(compiled.Error)
	}
	ok, _, err := compiled.DeviceMatches(t.Context(), cel.Device{Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity})
	must(t, err)
	if source.Driver != driver || !ok {
		return false
	}
	if counter == nil {
		_, ok := d.Capacity[resourceapi.QualifiedName(source.Name)]
		return ok
	}
	return slices.ContainsFunc(d.ConsumesCounters, func(c resourceapi.DeviceCounterConsumption) bool {
		_, ok := c.Counters[source.Name]
		return ok
	})
}

// checkQuotas checks that there are quotas of all that is mapped, and of nothing else.
func checkQuotas(t *testing.T, mapped sets.Set[string], objects []kueueObject) {
	t.Helper()
	quotas := sets.New[string]()
	for _, o := range objects {
		for _, group := range o.Spec.ResourceGroups {
			for _, f := range group.Flavors {
				for _, r := range f.Resources {
					quotas.Insert(r.Name)
				}
			}
		}
	}
	if diff := cmp.Diff(sets.List(mapped), sets.List(quotas)); diff != "" {
		t.Errorf("resources that are mapped, and those with quotas (-mapped +quotas):\n%s", diff)
	}
}
