// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"testing"

	"github.com/cleave-dra/cleave/e2e/workload"
)

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
