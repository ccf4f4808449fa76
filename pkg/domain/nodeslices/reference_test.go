// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// Every name that any node publishes is documented with its type and devices, and nothing else is.
func TestReference_Complete(t *testing.T) {
	attributes, capacities := map[string]map[string]bool{}, map[string]map[string]bool{} // by name and type, on which devices
	add := func(to map[string]map[string]bool, key, on string) {
		if to[key] == nil {
			to[key] = map[string]bool{}
		}
		to[key][on] = true
	}
	for _, model := range simulated.NodeModels() {
		for _, all := range []bool{false, true} {
			var rule v1alpha1.Rule
			if all {
				rule.Publish = &v1alpha1.PublishPolicy{Attributes: v1alpha1.PartitionAttributes()}
				rule.TimeSlice = &v1alpha1.TimeSlicePolicy{Placement: v1alpha1.PlacementSpread}
			}
			node := offeredNode(t, model, rule)
			for i := range node.GPUs {
				if node.GPUs[i].MIG.NeedsReset {
					node.GPUs[i].MIG.Enabled = i%2 == 0
				}
			}
			for _, s := range Objects(node, "gpu.cleave.dev", "n").Items {
				for _, d := range s.Spec.Devices {
					kind := *d.Attributes["type"].StringValue
					if all {
						kind += " by policy"
					}
					for name, a := range d.Attributes {
						add(attributes, string(name)+" "+valueType(a), kind)
					}
					for name := range d.Capacity {
						add(capacities, string(name), kind)
					}
				}
			}
		}
	}
	check(t, "attribute", attributes, Attributes(), func(e Entry) string { return e.Name + " " + e.Type })
	check(t, "capacity", capacities, Capacities(), func(e Entry) string { return e.Name })
}

func check(t *testing.T, what string, published map[string]map[string]bool, entries []Entry, key func(Entry) string) {
	t.Helper()
	documented := map[string]bool{}
	for i, e := range entries {
		documented[key(e)] = true
		if i > 0 && entries[i-1].Name >= e.Name {
			t.Errorf("%s %s is out of order", what, e.Name)
		}
		for _, kind := range []string{"gpu", "mig", "timeslice", "mps", "mig by policy"} {
			on := strings.Split(strings.ReplaceAll(e.On, "; ", ", "), ", ")
			want := on[0] == "all" || slices.Contains(on, kind) || kind == "mig by policy" && slices.Contains(on, "mig")
			if got := published[key(e)][kind]; got != want {
				t.Errorf("%s %s is on devices of type %s: %t, the reference says %t", what, key(e), kind, got, want)
			}
		}
	}
	for name := range published {
		if !documented[name] {
			t.Errorf("%s %s is not documented", what, name)
		}
	}
}

func valueType(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return "string"
	case a.IntValue != nil:
		return "int"
	case a.BoolValue != nil:
		return "bool"
	case a.VersionValue != nil:
		return "version"
	default:
		return "list"
	}
}
