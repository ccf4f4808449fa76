// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// placeOf are the attributes of a device that are about topology.
func placeOf(d *resourceapi.Device) map[string]string {
	place := map[string]string{}
	for name, a := range d.Attributes {
		switch n := string(name); {
		case strings.HasPrefix(n, "nvlink"), strings.HasPrefix(n, "fabric"), strings.HasPrefix(n, "resource.kubernetes.io/"),
			n == "pcieSwitch", n == "cpuAffinity":
			switch {
			case a.StringValue != nil:
				place[n] = *a.StringValue
			case a.IntValue != nil:
				place[n] = fmt.Sprint(*a.IntValue)
			case a.VersionValue != nil:
				place[n] = *a.VersionValue
			default:
				place[n] = fmt.Sprint(a.IntValues)
			}
		}
	}
	return place
}

// devicesOf are all devices of a node, in order.
func devicesOf(node *policy.Node, view View) []resourceapi.Device {
	var all []resourceapi.Device
	for _, s := range Of(node, view) {
		all = append(all, s.Devices...)
	}
	return all
}

func TestTopology_EveryModel(t *testing.T) {
	var text strings.Builder
	for _, model := range simulated.NodeModels() {
		text.WriteString(model + ":\n")
		node := offeredNode(t, model)
		for i := range node.GPUs {
			node.GPUs[i].MIG.Enabled = false
		}
		for _, d := range devicesOf(node, View{}) {
			// All whole GPUs, and of the first GPU one device more of each type.
			kind := *d.Attributes["type"].StringValue
			first := strings.HasPrefix(d.Name, node.GPUs[0].PCI.DeviceName()) && !strings.Contains(d.Name, "-mig-")
			if kind != string(gpu.TypeGPU) && !first {
				continue
			}
			text.WriteString("  " + d.Name + ":")
			place := placeOf(&d)
			for _, name := range slices.Sorted(maps.Keys(place)) {
				text.WriteString(" " + strings.TrimPrefix(name, "resource.kubernetes.io/") + "=" + place[name])
			}
			text.WriteString("\n")
		}
	}
	golden.Check(t, filepath.Join("testdata", "topology.txt"), text.String())
}

// fullest gives a GPU everything that a driver may report.
func fullest(g *gpu.GPU) {
	big := bigGPU(0)
	g.NVLinks, g.Fabric, g.PCIePath, g.CPUAffinity, g.NUMANode = big.NVLinks, big.Fabric, big.PCIePath, big.CPUAffinity, big.NUMANode
	g.Brand, g.Architecture, g.AddressingMode, g.ECC, g.ComputeCapability = big.Brand, big.Architecture, big.AddressingMode, big.ECC, big.ComputeCapability
	for n := range 40 {
		g.NearNUMANodes = append(g.NearNUMANodes, n+1)
	}
}

// A GPU that reports everything, with unmanaged partitions and their UUIDs.
func TestLimits_Attributes(t *testing.T) {
	most := map[string]int{}
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			node := offeredNode(t, model, v1alpha1.Rule{Publish: &v1alpha1.PublishPolicy{Attributes: v1alpha1.PartitionAttributes()}})
			for i := range node.GPUs {
				node.GPUs[i].MIG.Enabled = mig && node.GPUs[i].MIG.Capable
				fullest(&node.GPUs[i])
			}
			for _, lists := range []bool{false, true} {
				r := Of(node, View{Lists: lists})
				for _, d := range devicesOf(node, View{}) {
					NameExisting(r, d.Name, "MIG-6fbb1de4-2f8a-4d3c-9d2f-7c14a1f0c2e5")
				}
				checkLimits(t, r)
				for _, s := range r {
					for _, d := range s.Devices {
						kind := *d.Attributes["type"].StringValue
						most[kind] = max(most[kind], len(d.Attributes)+len(d.Capacity))
					}
				}
			}
		}
	}
	// What is left for attributes to come.
	want := map[string]int{string(gpu.TypeGPU): 27, "timeslice": 29, "mps": 30, string(gpu.TypeMIG): 32}
	if diff := cmp.Diff(want, most); diff != "" {
		t.Errorf("attributes and capacities, of at most %d (-want +got):\n%s", resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice, diff)
	}
}

func TestTopology_Partitions(t *testing.T) {
	node := offeredNode(t, "hgx-h100")
	fullest(&node.GPUs[0])
	seen := 0
	for _, d := range devicesOf(node, View{}) {
		if *d.Attributes["type"].StringValue != string(gpu.TypeMIG) {
			continue
		}
		seen++
		for name := range d.Attributes {
			if strings.HasPrefix(string(name), "nvlink") || strings.HasPrefix(string(name), "fabric") {
				t.Errorf("partition %s has the attribute %s", d.Name, name)
			}
		}
		if d.Attributes["resource.kubernetes.io/pcieRoot"].StringValue == nil || d.Attributes["resource.kubernetes.io/numaNode"].IntValue == nil {
			t.Errorf("partition %s does not say where its GPU sits", d.Name)
		}
	}
	if seen == 0 {
		t.Error("no partition is published")
	}
}

func TestTopology_LongCPUList(t *testing.T) {
	for n, want := range map[int]bool{64: true, 65: false} {
		node := nodeOf(1)
		node.GPUs[0].CPUAffinity = strings.Repeat("1", n)
		if _, got := deviceOf(t, node).Attributes["cpuAffinity"]; got != want {
			t.Errorf("a list of %d bytes is published: %t, want %t", n, got, want)
		}
	}
}

func TestTopology_NUMAList(t *testing.T) {
	tests := map[string]struct{ plain, list string }{
		"hgx-h100": {"0", "[0]"},
		"dgx-a100": {"3", "[3 0 1 2]"}, // four NUMA nodes a socket
		"t4":       {"", ""},
	}
	for model, tt := range tests {
		node := offeredNode(t, model)
		name := node.GPUs[0].PCI.DeviceName()
		for lists, want := range map[bool]string{false: tt.plain, true: tt.list} {
			for _, d := range devicesOf(node, View{Lists: lists}) {
				if got := placeOf(&d)["resource.kubernetes.io/numaNode"]; d.Name == name && got != want {
					t.Errorf("%s, lists taken: %t: got %s, want %s", model, lists, got, want)
				}
			}
		}
	}
}

// One slice changes, so that the pool stays allocatable.
func TestResources_OrderFollowsFree(t *testing.T) {
	node := offeredNode(t, "rtx-pro-6000")
	allocated := map[int]bool{7: true, 6: true, 5: true}
	view := View{Free: func(g *gpu.GPU) bool { return !allocated[g.Index] }}
	before, after := Of(node, View{}), Of(node, view)
	var changed []int
	for i := range before {
		if encode(t, before[i]) != encode(t, after[i]) {
			changed = append(changed, i)
		}
	}
	if diff := cmp.Diff([]int{1}, changed); diff != "" {
		t.Fatalf("slices that changed (-want +got):\n%s", diff)
	}
	var order []string
	for _, d := range after[1].Devices {
		order = append(order, fmt.Sprint(*d.Attributes["index"].IntValue))
	}
	if diff := cmp.Diff("3 2 1 0 5 4 7 6", strings.Join(order, " ")); diff != "" {
		t.Errorf("whole GPUs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(view.WholeGPUs(node), namesOf(after[1].Devices)); diff != "" {
		t.Errorf("WholeGPUs (-said +published):\n%s", diff)
	}
	// A device with a taint cannot be had either.
	taints := View{}
	for i := range allocated {
		taints.Taints = append(taints.Taints, Taint{Device: node.GPUs[i].PCI.DeviceName(), Key: TaintOccupied})
	}
	if diff := cmp.Diff(view.WholeGPUs(node), taints.WholeGPUs(node)); diff != "" {
		t.Errorf("order (-allocated +tainted):\n%s", diff)
	}
	// One with a taint that only informs can.
	for i := range taints.Taints {
		taints.Taints[i].Effect = resourceapi.DeviceTaintEffectNone
	}
	if diff := cmp.Diff((&View{}).WholeGPUs(node), taints.WholeGPUs(node)); diff != "" {
		t.Errorf("order (-free +marked):\n%s", diff)
	}
}

func namesOf(devices []resourceapi.Device) []string {
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	return names
}
