// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// The plugin's number is the one that those find who read its slices and the claims.
func TestFragmentation_AsOfSlices(t *testing.T) {
	for _, model := range []string{"hgx-h100", "l40s", "rtx-pro-6000"} {
		session, err := simulated.Open(t.Context(), model)
		if err != nil {
			t.Fatal(err)
		}
		node := policy.Apply(&v1alpha1.NodePolicy{}, session.Node(), policy.Capabilities{})
		const driver = "gpu.cleave.dev"
		var published []*resourceapi.ResourceSlice
		list := nodeslices.Objects(node, driver, "node-1")
		for i := range list.Items {
			published = append(published, &list.Items[i])
		}
		seen, err := pools.NewCache().Node(published)
		if err != nil {
			t.Fatal(err)
		}
		var all []*records.Record
		var results []resourceapi.DeviceRequestAllocationResult
		check := func(what string) float64 {
			t.Helper()
			state := seen.NewState()
			state.Allocate(seen.Uses(results)...)
			want := packing.Fragmentation(state)
			if got := Fragmentation(node, all); got != want {
				t.Errorf("%s, %s: got %v, want %v", model, what, got, want)
			}
			return want
		}
		allocate := func(at int, d records.Device) {
			all = append(all, recordOf(&node.GPUs[at], d.Device, d))
			result := resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: "node-1", Device: d.Device}
			if d.Share != nil {
				result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
					gpu.CapacityShares: *resource.NewQuantity(d.Share.Shares, resource.DecimalSI),
					gpu.CapacityMemory: *resource.NewQuantity(d.Share.Memory, resource.BinarySI),
				}
			}
			results = append(results, result)
		}
		check("nothing allocated")
		allocate(0, whole(&node.GPUs[0]))
		if check("a whole GPU") != 0 {
			t.Errorf("%s is fragmented by a whole GPU", model)
		}
		released := share(&node.GPUs[1], gpu.TimeSlice, 1, 10*gib, 0)
		released.Released = true
		all = append(all, recordOf(&node.GPUs[1], "released", released))
		check("a share that is released")
		allocate(1, share(&node.GPUs[1], gpu.TimeSlice, 1, 10*gib, 0))
		if check("a share") == 0 {
			t.Errorf("%s is not fragmented by a share", model)
		}
		if shapes := node.GPUs[len(node.GPUs)-1].PartitionShapes(); len(shapes) > 0 {
			s := shapes[0]
			allocate(len(node.GPUs)-1, records.Device{Device: s.Name(), Partition: &gpu.Partition{ProfileID: s.Profile.ID, Placement: s.Placement}})
			check("a partition")
		}
	}
}
