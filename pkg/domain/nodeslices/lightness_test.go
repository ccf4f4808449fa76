// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// partitionOf is a partition of a node of H100, by what its GPUs publish.
func partitionOf(t *testing.T, p v1alpha1.PublishPolicy) resourceapi.Device {
	t.Helper()
	for _, d := range devicesOf(offeredNode(t, "hgx-h100", v1alpha1.Rule{Publish: &p}), View{}) {
		if _, _, ok := gpu.ParsePartitionName(d.Name); ok {
			return d
		}
	}
	t.Fatal("no partition is published")
	return resourceapi.Device{}
}

func TestPublish_Attributes(t *testing.T) {
	usual := slices.Sorted(maps.Keys(partitionOf(t, v1alpha1.PublishPolicy{}).Attributes))
	got := slices.Sorted(maps.Keys(partitionOf(t, v1alpha1.PublishPolicy{
		Attributes: []v1alpha1.PartitionAttribute{"giProfileID"}, OmitAttributes: v1alpha1.PartitionAttributes()[1:2],
	}).Attributes))
	want := append(slices.DeleteFunc(slices.Clone(usual), func(n resourceapi.QualifiedName) bool { return n == "architecture" }), "giProfileID")
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	// Each one that a policy may name is there when it is named, and gone when it is omitted; the rest always is.
	for _, name := range v1alpha1.PartitionAttributes() {
		one := []v1alpha1.PartitionAttribute{name}
		if _, ok := partitionOf(t, v1alpha1.PublishPolicy{Attributes: one}).Attributes[resourceapi.QualifiedName(name)]; !ok {
			t.Errorf("%s is not published though the policy adds it", name)
		}
		if _, ok := partitionOf(t, v1alpha1.PublishPolicy{OmitAttributes: one}).Attributes[resourceapi.QualifiedName(name)]; ok {
			t.Errorf("%s is published though the policy omits it", name)
		}
	}
	least := slices.Sorted(maps.Keys(partitionOf(t, v1alpha1.PublishPolicy{OmitAttributes: v1alpha1.PartitionAttributes()}).Attributes))
	if diff := cmp.Diff([]resourceapi.QualifiedName{"parentUUID", "placementSize", "profile", "type"}, least); diff != "" {
		t.Errorf("the least attributes (-want +got):\n%s", diff)
	}
}

// The NUMA node by its previous name is on all devices where the policy says so, and on none else.
func TestPublish_PreviousNUMANode(t *testing.T) {
	for _, named := range []bool{false, true} {
		var rule v1alpha1.Rule
		if named {
			rule.Publish = &v1alpha1.PublishPolicy{Attributes: []v1alpha1.PartitionAttribute{v1alpha1.AttributePreviousNUMANode}}
		}
		for _, d := range devicesOf(offeredNode(t, "hgx-h100", rule), View{}) {
			standard, previous := d.Attributes["resource.kubernetes.io/numaNode"], d.Attributes["dra.net/numaNode"]
			want := resourceapi.DeviceAttribute{}
			if named {
				want = standard
			}
			if diff := cmp.Diff(want, previous); diff != "" || standard.IntValue == nil {
				t.Errorf("%s, named %t (-want +got):\n%s", d.Name, named, diff)
			}
		}
	}
}

// Without the two attributes that docs/policy.md names, a partition has eight. One more, and each takes twice the memory in the
// API server and in schedulers: a Go map has groups of eight (internal/abi, MapGroupSlots).
func TestPublish_EightAttributes(t *testing.T) {
	less := []v1alpha1.PartitionAttribute{"driverVersion", "resource.kubernetes.io/pcieRoot"}
	d := partitionOf(t, v1alpha1.PublishPolicy{OmitAttributes: less})
	if len(d.Attributes) > 8 || len(d.Capacity) > 8 {
		t.Errorf("a partition has %d attributes and %d capacities: %v", len(d.Attributes), len(d.Capacity), d)
	}
}

// A GPU has counters exactly where two of its devices exclude each other, or where a policy wants amounts.
func TestPublish_Counters(t *testing.T) {
	for name, tt := range map[string]struct {
		model   string
		rule    v1alpha1.Rule
		counted bool
	}{
		"every tier":     {"hgx-h100", v1alpha1.Rule{}, true},
		"whole":          {"hgx-h100", v1alpha1.Rule{Tiers: []v1alpha1.Tier{"exclusive"}}, false},
		"one way shared": {"hgx-h100", v1alpha1.Rule{Tiers: []v1alpha1.Tier{"mps"}}, false},
		"two ways":       {"hgx-h100", v1alpha1.Rule{Tiers: []v1alpha1.Tier{"mps", "timeSlice"}}, true},
		"partitions":     {"hgx-h100", v1alpha1.Rule{Tiers: []v1alpha1.Tier{"mig"}}, true},
		"a layout":       {"hgx-h100", v1alpha1.Rule{MIG: &v1alpha1.MIGPolicy{Layout: map[string]int32{"1g.10gb": 7}}}, false},
		"a layout, with amounts": {"hgx-h100", v1alpha1.Rule{
			MIG: &v1alpha1.MIGPolicy{Layout: map[string]int32{"1g.10gb": 7}}, Publish: &v1alpha1.PublishPolicy{Counters: v1alpha1.QuotaCounters()},
		}, true},
		"T4":        {"t4", v1alpha1.Rule{}, true},
		"T4, whole": {"t4", v1alpha1.Rule{Tiers: []v1alpha1.Tier{"exclusive"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			node := offeredNode(t, tt.model, tt.rule)
			published := slicesOf(t, node)
			checkLimits(t, published)
			sets, consuming, devices := 0, 0, 0
			for _, s := range published {
				sets += len(s.SharedCounters)
				for _, d := range s.Devices {
					devices++
					consuming += len(d.ConsumesCounters)
				}
			}
			wantSets, wantConsuming := 0, 0
			if tt.counted {
				wantSets, wantConsuming = len(node.GPUs), devices
			}
			if sets != wantSets || consuming != wantConsuming {
				t.Errorf("%d counter sets and %d of %d devices that consume, want %d and %d", sets, consuming, devices, wantSets, wantConsuming)
			}
		})
	}
}

// Counters of amounts refuse nothing that the others admit: the whole GPU takes all of them, and no partitions that fit
// alongside each other take more.
func TestPublish_AmountsForbidNothing(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offeredNode(t, model)
		g := &node.GPUs[0]
		g.MIG.Enabled = g.MIG.Capable
		all, amounts := g.Counters(), g.AmountCounters()
		parts := g.PartitionShapes()
		sets := 0
		var walk func(made []gpu.Shape, first int)
		walk = func(made []gpu.Shape, first int) {
			sets++
			if !gpu.Coexist(made, append(slices.Clone(all), amounts...)) {
				t.Fatalf("%s: the counters of amounts %v refuse %d partitions that the others admit", model, amounts, len(made))
			}
			for i := first; i < len(parts) && sets < 20_000; i++ {
				if with := append(slices.Clone(made), parts[i]); gpu.Coexist(with, all) {
					walk(with, i+1)
				}
			}
		}
		walk(nil, 0)
		if g.Memory != nil && (len(amounts) == 0 || amounts[0].Name != gpu.CounterMemory) {
			t.Errorf("%s has no counter of memory: %v", model, amounts)
		}
	}
}
