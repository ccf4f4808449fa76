// SPDX-License-Identifier: Apache-2.0

package records

import "github.com/cleave-dra/cleave/pkg/gpu"

// HeldOf returns what is allocated of a GPU to the claims of records.
func HeldOf(held []*Record) func(g *gpu.GPU) gpu.Held {
	byGPU := map[string]*gpu.Held{}
	for _, r := range held {
		for i := range r.Devices {
			d := &r.Devices[i]
			if d.AdminAccess {
				continue
			}
			if byGPU[d.GPU] == nil {
				byGPU[d.GPU] = &gpu.Held{}
			}
			switch has := byGPU[d.GPU]; {
			case d.Partition != nil:
				has.Places = append(has.Places, d.Partition.Place())
			case d.Share == nil || d.Share.Exclusive:
				has.Whole = true
			case d.Share.Kind == gpu.MPS:
				has.MPS = true
			default:
				has.TimeSlice = true
			}
		}
	}
	return func(g *gpu.GPU) gpu.Held {
		if has := byGPU[g.PCI.DeviceName()]; has != nil {
			return *has
		}
		return gpu.Held{}
	}
}
