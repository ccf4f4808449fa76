// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// nvidiaForms are ways in which NVIDIA's driver publishes.
var nvidiaForms = map[string]NVIDIA{
	"whole":                {},
	"static partitions":    {Static: 2},
	"shares":               {Shares: "4"},
	"shares of memory":     {Static: 1, Shares: "memory"},
	"unlimited shares":     {Shares: "unlimited"},
	"dynamic MIG":          {DynamicMIG: true},
	"dynamic MIG for 1.34": {DynamicMIG: true, Combined: true},
	"dynamic MIG, shares":  {DynamicMIG: true, Shares: "4"},
	"dynamic MIG, memory":  {DynamicMIG: true, Shares: "memory"},
}

// TestMeasure_AgreesOnNVIDIASlices: the measure predicts what the allocator takes of the slices of NVIDIA's own driver.
func TestMeasure_AgreesOnNVIDIASlices(t *testing.T) {
	for _, name := range []string{"hgx-h100", "dgx-a100", "l40s"} {
		for form, n := range nvidiaForms {
			t.Run(name+"/"+form, func(t *testing.T) { checkTraces(t, n.Publish, model(t, name)) })
		}
	}
}

// TestNVIDIA_Model: devices belong to their GPU, by counters, PCI address or UUID, have their size, and NUMA nodes are known.
func TestNVIDIA_Model(t *testing.T) {
	without := func(published []*resourceapi.ResourceSlice, attribute resourceapi.QualifiedName) []*resourceapi.ResourceSlice {
		for _, s := range published {
			for i := range s.Spec.Devices {
				delete(s.Spec.Devices[i].Attributes, attribute)
			}
		}
		return published
	}
	const pci = deviceattribute.StandardDeviceAttributePCIBusID
	node := model(t, "hgx-h100")
	for name, tt := range map[string]struct {
		published []*resourceapi.ResourceSlice
		counted   bool
		units     []int // by GPU
	}{
		"whole":              {NVIDIA{}.Publish(node), false, []int{1, 1, 1, 1, 1, 1, 1, 1}},
		"partitions":         {NVIDIA{Static: 8}.Publish(node), true, []int{1, 1, 1, 1, 1, 1, 1, 1}},
		"partitions, no PCI": {without(NVIDIA{Static: 8}.Publish(node), pci), true, []int{1, 1, 1, 1, 1, 1, 1, 1}},
		"dynamic MIG":        {NVIDIA{DynamicMIG: true}.Publish(node), true, []int{8, 8, 8, 8, 8, 8, 8, 8}},
		// As Kubernetes 1.34 took them, and the allocator of 1.37 sees no devices in them.
		"dynamic MIG for 1.34": {NVIDIA{DynamicMIG: true, Combined: true}.Publish(node), false, nil},
		"shares":               {NVIDIA{Shares: "4"}.Publish(node), true, []int{1, 1, 1, 1, 1, 1, 1, 1}},
	} {
		n, err := pools.NewCache().Node(tt.published)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var units []int
		for _, g := range n.Model.GPUs {
			units = append(units, g.Units)
		}
		if diff := cmp.Diff(tt.units, units); diff != "" || n.Counted != tt.counted || n.Driver != "gpu.nvidia.com" {
			t.Errorf("%s: counted %t; sizes of GPUs (-want +got):\n%s", name, n.Counted, diff)
		}
		blocks := []string{"NUMA node 0", "NUMA node 1"}
		if diff := cmp.Diff(blocks, slices.Sorted(slices.Values(n.Model.Blocks))); diff != "" && len(units) > 0 {
			t.Errorf("%s: blocks (-want +got):\n%s", name, diff)
		}
	}
}
