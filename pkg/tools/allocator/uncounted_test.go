// SPDX-License-Identifier: Apache-2.0

package allocator_test

import (
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// dropCounters is what an API server makes of slices without the feature gate DRAPartitionableDevices
// (kubernetes pkg/registry/resource/resourceslice/strategy.go, dropDisabledDRAPartitionableDevicesFields).
func dropCounters(list *resourceapi.ResourceSliceList) (kept []*resourceapi.ResourceSlice, dropped int) {
	for i := range list.Items {
		s := &list.Items[i]
		dropped += len(s.Spec.SharedCounters)
		s.Spec.SharedCounters = nil
		for j := range s.Spec.Devices {
			dropped += len(s.Spec.Devices[j].ConsumesCounters)
			s.Spec.Devices[j].ConsumesCounters = nil
		}
		kept = append(kept, s)
	}
	return kept, dropped
}

// Where counters are dropped, the allocator gives no GPU to two claims that exclude each other, whatever the policy, and in
// whatever order they come; and slices lose nothing, so that they are seen to arrive.
func TestUncounted_NothingTwice(t *testing.T) {
	classes, err := manifests.Classes()
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"hgx-h100", "a30", "l40s"} {
		for _, rule := range []string{
			"{}", "{tiers: [exclusive]}", "{tiers: [mig]}", "{tiers: [mig, exclusive]}", "{tiers: [timeSlice]}", "{tiers: [mps, timeSlice]}",
			"{publish: {counters: [memory]}}", "{mig: {layout: {1g.10gb: 7}}}",
			"{mig: {layout: {1g.10gb: 2}, share: [{profile: 1g.10gb, mps: {}}]}}",
		} {
			t.Run(model+rule, func(t *testing.T) {
				inventory, err := models.Load(model)
				if err != nil {
					t.Fatal(err)
				}
				inventory.GPUs = inventory.GPUs[:2]
				p, err := v1alpha1.DecodeNodePolicy([]byte("apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: [" + rule + "]"))
				if err != nil {
					t.Fatal(err)
				}
				offered := policy.Apply(p, inventory, policy.Capabilities{Counters: errors.New("dropped")})
				published, dropped := dropCounters(nodeslices.Objects(offered, v1alpha1.Group, "node-1"))
				if dropped > 0 {
					t.Errorf("%d counters are published", dropped)
				}
				n, err := allocator.NewNode(published, classes)
				if err != nil {
					t.Fatal(err)
				}
				allocated := map[gpu.PCIAddress][]gpu.Shape{}
				for _, class := range classes {
					for i := 0; ; i++ {
						result, err := n.AllocateFromClass(t.Context(), fmt.Sprint(class.Name, i), class.Name, 1)
						if err != nil {
							break
						}
						shape, _ := offered.FindShape(result.Devices.Results[0].Device)
						if got := allocated[shape.GPU.PCI]; !shape.IsShare() || len(got) == 0 || got[len(got)-1].Name() != shape.Name() {
							allocated[shape.GPU.PCI] = append(got, shape) // more shares of one device are one device
						}
					}
				}
				for pci, shapes := range allocated {
					if !gpu.Coexist(shapes, shapes[0].GPU.Counters()) {
						t.Errorf("GPU %s is allocated as %v", pci, shapes)
					}
				}
			})
		}
	}
}
