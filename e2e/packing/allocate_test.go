// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

func TestAllocate_SevenSmallPartitions(t *testing.T) {
	c := newCluster(t, model(t, "hgx-h100"))
	var starts []int
	for range 7 {
		device, _ := c.get("mig-1g.10gb.cleave.dev")
		if c.parent(device) != 0 {
			t.Errorf("%s is not of the first GPU", device)
		}
		_, start, _ := gpu.ParsePartitionName(device)
		starts = append(starts, start)
	}
	if diff := cmp.Diff([]int{6, 5, 4, 3, 2, 1, 0}, starts); diff != "" {
		t.Errorf("starts (-want +got):\n%s", diff)
	}
	if device, _ := c.get("mig-1g.10gb.cleave.dev"); c.parent(device) != 1 {
		t.Errorf("the eighth, %s, is not of the second GPU", device)
	}
}

func TestAllocate_ThreeAndFourSlices(t *testing.T) {
	for _, order := range [][]string{{"3g.40gb", "4g.40gb"}, {"4g.40gb", "3g.40gb"}, {"1g.10gb", "2g.20gb", "4g.40gb"}} {
		c := newCluster(t, model(t, "hgx-h100"))
		for _, profile := range order {
			if device, _ := c.get("mig-" + profile + ".cleave.dev"); c.parent(device) != 0 {
				t.Errorf("%v: %s is not of the first GPU", order, device)
			}
		}
	}
}

func TestAllocate_GPUWithPartition(t *testing.T) {
	c := newCluster(t, model(t, "hgx-h100"))
	small, release := c.get("mig-1g.10gb.cleave.dev")
	for i := 7; i > c.parent(small); i-- {
		if whole, _ := c.get("gpu.cleave.dev"); c.parent(whole) != i {
			t.Errorf("whole GPU %s is not of GPU %d", whole, i)
		}
	}
	claim := allocator.NewClaim("eighth", "gpu.cleave.dev", 1)
	if devices, _, err := c.try(claim); !errors.Is(err, allocator.ErrNoFit) {
		t.Fatalf("an eighth whole GPU: got %v, %v", devices, err)
	}
	release()
	devices, _, err := c.try(claim)
	if diff := cmp.Diff([]string{c.inventory.GPUs[0].PCI.DeviceName()}, devices); err != nil || diff != "" {
		t.Errorf("once the partition is gone: %v\n%s", err, diff)
	}
	if devices, _, err := c.try(allocator.NewClaim("small", "mig-1g.10gb.cleave.dev", 1)); !errors.Is(err, allocator.ErrNoFit) {
		t.Errorf("a partition of a GPU that is given whole: got %v, %v", devices, err)
	}
}

func TestAllocate_PartitionClasses(t *testing.T) {
	for _, class := range []string{"mig.cleave.dev", "mig-1g.10gb.cleave.dev", "mig-7g.80gb.cleave.dev"} {
		c := newCluster(t, model(t, "hgx-h100"))
		for i := 0; ; i++ {
			devices, _, err := c.try(allocator.NewClaim(fmt.Sprintf("claim-%d", i), class, 1))
			if errors.Is(err, allocator.ErrNoFit) {
				if i < 8 {
					t.Errorf("%s: only %d devices", class, i)
				}
				break
			}
			must(t, err)
			if got := c.text(devices[0], "type"); got != "mig" {
				t.Fatalf("%s: %s is a %s", class, devices[0], got)
			}
		}
	}
}

func TestAllocate_AnyPartition(t *testing.T) {
	for atLeast, want := range map[string]string{"1Gi": "1g.10gb", "12Gi": "1g.20gb", "24Gi": "3g.40gb", "64Gi": "7g.80gb"} {
		c := newCluster(t, model(t, "hgx-h100"))
		selector := fmt.Sprintf(`device.capacity["gpu.cleave.dev"].memory.compareTo(quantity("%s")) >= 0`, atLeast)
		devices, _, err := c.try(newClaimOf("any", workload.ClaimSpec("mig.cleave.dev", 1, selector)))
		must(t, err)
		if got := c.text(devices[0], "profile"); got != want {
			t.Errorf("any partition of %s or more: got a %s, want a %s", atLeast, got, want)
		}
	}
}

func TestAllocate_PartitionsOfOneParent(t *testing.T) {
	c := newCluster(t, model(t, "hgx-h100"))
	c.get("mig-4g.40gb.cleave.dev")
	claim := newClaimOf("three", workload.ClaimSpec("mig-2g.20gb.cleave.dev", 3))
	attribute := resourceapi.FullyQualifiedName("gpu.cleave.dev/parentUUID")
	claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
	devices, _, err := c.try(claim)
	must(t, err)
	for _, d := range devices {
		if c.parent(d) != 1 {
			t.Errorf("%s is not of the second GPU", d)
		}
	}
}

func TestAllocate_FirstAvailable(t *testing.T) {
	for board, want := range map[string]string{"H100-80": "2g.20gb", "A100-40": "3g.20gb"} {
		c := newCluster(t, boardNode(t, board))
		_, claims := podClaims(t, example(t, "mig-first-available"), c.class)
		devices, _, err := c.try(claims["mig-first-available"]...)
		if err != nil {
			t.Errorf("%s: %v", board, err)
			continue
		}
		if got := c.text(devices[0], "profile"); got != want {
			t.Errorf("%s: got a %s, want a %s", board, got, want)
		}
	}
}
