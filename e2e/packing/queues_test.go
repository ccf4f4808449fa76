// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// kueueObject is what is looked at of an object of Kueue.
type kueueObject struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		ClusterQueue   string
		ResourceGroups []struct {
			Flavors []struct {
				Name      string
				Resources []struct{ Name string }
			}
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

// TestQueues_Examples decodes the examples for Kueue into its own types, and compares them with what Cleave publishes.
func TestQueues_Examples(t *testing.T) {
	decode := buildDecoder(t)
	// Queues have quotas for what their configuration maps.
	for _, tt := range []struct{ configuration, queues string }{
		{"configuration-devices", "queues-devices"},
		{"configuration-amounts", "queues-amounts"},
		{"configuration-shares", ""},
	} {
		t.Run(tt.configuration, func(t *testing.T) {
			mapped := sets.New[string]()
			for _, o := range decode(t, tt.configuration) {
				for _, m := range o.Resources.DeviceClassMappings {
					mapped.Insert(m.Name)
					checkMapping(t, m)
				}
			}
			if mapped.Len() == 0 {
				t.Error("it maps no DeviceClass")
			}
			if tt.queues != "" {
				checkQueues(t, mapped, decode(t, tt.queues))
			}
		})
	}
	if files, err := filepath.Glob(filepath.Join(examplesDir, "kueue", "*")); err != nil || len(files) != 5 {
		t.Errorf("the test does not know of all the examples: %v (%v)", files, err)
	}
}

// buildDecoder builds the command that decodes documents as Kueue does.
func buildDecoder(t *testing.T) func(t *testing.T, name string) []kueueObject {
	t.Helper()
	program := build(t, "kueue")
	return func(t *testing.T, name string) []kueueObject {
		t.Helper()
		data := readFile(t, filepath.Join(examplesDir, "kueue", name+".yaml"))
		var objects []kueueObject
		for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
			run := exec.CommandContext(t.Context(), program)
			output, problem := &bytes.Buffer{}, &bytes.Buffer{}
			run.Stdin, run.Stdout, run.Stderr = bytes.NewReader(document), output, problem
			if err := run.Run(); err != nil {
				t.Fatalf("%s: %v: %s\n%s", name, err, problem, document)
			}
			var o kueueObject
			must(t, json.Unmarshal(output.Bytes(), &o))
			objects = append(objects, o)
		}
		return objects
	}
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

// checkQueues checks that quotas are of mapped resources, and that LocalQueues and flavors lead somewhere.
func checkQueues(t *testing.T, mapped sets.Set[string], objects []kueueObject) {
	t.Helper()
	queues := sets.New[string]()
	for _, o := range objects {
		if o.Kind != "ClusterQueue" {
			continue
		}
		queues.Insert(o.Metadata.Name)
		for _, group := range o.Spec.ResourceGroups {
			for _, f := range group.Flavors {
				if f.Name != "h100" {
					t.Errorf("ClusterQueue %s: there is no flavor %s", o.Metadata.Name, f.Name)
				}
				for _, r := range f.Resources {
					if !mapped.Has(r.Name) {
						t.Errorf("ClusterQueue %s: the configuration does not map %s", o.Metadata.Name, r.Name)
					}
				}
			}
		}
	}
	if got := strings.Join(sets.List(queues), " "); got != "backfill batch interactive" {
		t.Errorf("ClusterQueues: %s", got)
	}
	for _, o := range objects {
		if o.Kind == "LocalQueue" && !queues.Has(o.Spec.ClusterQueue) {
			t.Errorf("LocalQueue %s: there is no ClusterQueue %s", o.Metadata.Name, o.Spec.ClusterQueue)
		}
	}
}
