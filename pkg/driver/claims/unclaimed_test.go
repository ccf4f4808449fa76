// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

func TestOccupantOf(t *testing.T) {
	ci := 0
	at := func(start, size int) gpu.Partition {
		return gpu.Partition{ProfileID: 10 + size, Placement: gpu.Placement{Start: start, Size: size}}
	}
	complete := at(2, 2)
	complete.CI = &ci
	unclaimed := []gpu.Partition{complete, at(6, 1)}
	onDemand := &policy.Offer{Partitions: &policy.PartitionOffer{Mode: policy.OnDemand}}
	existing := &policy.Offer{Partitions: &policy.PartitionOffer{Mode: policy.Existing}}
	of := func(p gpu.Partition) extent { return extentAt("gpu", p.Place()) }
	for name, tt := range map[string]struct {
		offer           *policy.Offer
		want            extent
		blocks, offered bool
	}{
		"free":                      {onDemand, of(at(0, 2)), false, false},
		"whole GPU":                 {existing, extent{gpu: "gpu"}, true, false},
		"share":                     {existing, extent{gpu: "gpu", share: gpu.MPS}, true, false},
		"overlapping":               {existing, of(at(3, 1)), true, false},
		"same place":                {existing, of(at(2, 2)), false, true},
		"same place, not offered":   {onDemand, of(at(2, 2)), true, false},
		"same place, other profile": {existing, extentAt("gpu", gpu.Place{ProfileID: 99, Placement: gpu.Placement{Start: 2, Size: 2}}), true, false},
		"same place, incomplete":    {existing, of(at(6, 1)), true, false},
	} {
		got := occupantOf(unclaimed, tt.offer, tt.want)
		if got.blocks() != tt.blocks || got.offered != tt.offered {
			t.Errorf("%s: blocks %t, offered %t, want %t, %t", name, got.blocks(), got.offered, tt.blocks, tt.offered)
		}
	}
}
