// SPDX-License-Identifier: Apache-2.0

package packing

// milli are the thousandths of one placement unit.
const milli = 1000

// freeUnits are the free part of a GPU, in thousandths of placement units: its size less that of allocated partitions; for a shared
// GPU, the part that its shares leave.
func (s *State) freeUnits(gpu int) int {
	free := s.model.GPUs[gpu].Units * milli
	for _, i := range s.model.byGPU[gpu] {
		if s.uses[i] == 0 {
			continue
		}
		d := &s.model.Devices[i]
		if !d.Shared {
			free -= d.Size * milli
			continue
		}
		most := 0
		for c, used := range s.amounts[i] {
			if total := d.Capacities[c].Total; total > 0 {
				most = max(most, int(float64(d.Size*milli)*float64(used)/float64(total)))
			}
		}
		free -= most
	}
	return max(0, free)
}

// load is the allocated part of the node, in thousandths.
func (s *State) load() int {
	units, free := 0, 0
	for g := range s.model.GPUs {
		units += s.model.GPUs[g].Units
		if s.Touched(g) {
			free += s.freeUnits(g)
		} else {
			free += s.model.GPUs[g].Units * milli
		}
	}
	if units == 0 {
		return 0
	}
	return milli - free/units
}

// Fragmentation is the fraction of free placement units on partly allocated GPUs: the free part that can no longer be allocated as
// whole GPUs. It is 0 if every GPU is either untouched or full; it approaches 1 if no GPU is untouched though much is free. A
// placement unit is the smallest partition's part of a GPU; a GPU without partitions is one unit.
func Fragmentation(states ...*State) float64 {
	var f Free
	for _, s := range states {
		f = f.Plus(s.Free())
	}
	return f.Fragmentation()
}

// Free is the free part of nodes, and the part of that on partly allocated GPUs, both in thousandths of placement units.
type Free struct{ All, Broken int }

// Free is the free part of the node.
func (s *State) Free() Free {
	var f Free
	for g := range s.model.GPUs {
		left := s.freeUnits(g)
		f.All += left
		if s.Touched(g) {
			f.Broken += left
		}
	}
	return f
}

// Plus adds the free part of other nodes.
func (f Free) Plus(o Free) Free { return Free{f.All + o.All, f.Broken + o.Broken} }

// Fragmentation is like the function Fragmentation, for the sum of nodes.
func (f Free) Fragmentation() float64 {
	if f.All == 0 {
		return 0
	}
	return float64(f.Broken) / float64(f.All)
}
