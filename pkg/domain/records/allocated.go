// SPDX-License-Identifier: Apache-2.0

package records

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// AllocatedOf returns a function that reports how much of a GPU is allocated to the claims of these records.
func AllocatedOf(list []*Record) func(g *gpu.GPU) gpu.Allocated {
	byGPU := map[string]*gpu.Allocated{}
	for _, r := range list {
		for i := range r.Devices {
			d := &r.Devices[i]
			if d.AdminAccess {
				continue
			}
			if byGPU[d.GPU] == nil {
				byGPU[d.GPU] = &gpu.Allocated{}
			}
			switch has := byGPU[d.GPU]; {
			case d.Partition != nil && d.IsShared():
				if at := (gpu.SharedPlace{Place: d.Partition.Place(), Share: d.Share.Kind}); !slices.Contains(has.Shared, at) {
					has.Shared = append(has.Shared, at)
				}
			case d.Partition != nil:
				has.Places = append(has.Places, d.Partition.Place())
			case !d.IsShared():
				has.Whole = true
			case d.Share.Kind == gpu.MPS:
				has.MPS = true
			default:
				has.TimeSlice = true
			}
		}
	}
	return func(g *gpu.GPU) gpu.Allocated {
		if has := byGPU[g.PCI.DeviceName()]; has != nil {
			return *has
		}
		return gpu.Allocated{}
	}
}
