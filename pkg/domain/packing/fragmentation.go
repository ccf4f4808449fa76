// SPDX-License-Identifier: Apache-2.0

package packing

// milli are the thousandths of one placement unit.
const milli = 1000

// freeUnits are what is left of a GPU, in thousandths of placement units: its size less that of the partitions that are
// allocated, and of a shared GPU the part that its shares leave.
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

// load is what is allocated of the node, in thousandths.
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

// Fragmentation is the share of the free placement units that lie on GPUs of which something is allocated already: what is
// free and can no longer be allocated as whole GPUs. It is 0 where nothing is allocated, where nothing is free, and wherever
// every GPU is either untouched or full; it nears 1 where no GPU is left untouched though much is free. A placement unit is
// the smallest partition's part of a GPU; a GPU without partitions is one unit.
func Fragmentation(states ...*State) float64 {
	var f Free
	for _, s := range states {
		f = f.Plus(s.Free())
	}
	return f.Fragmentation()
}

// Free is what is free of nodes, and which part of it lies on GPUs of which something is allocated, both in thousandths of
// placement units.
type Free struct{ All, Broken int }

// Free is that of the node.
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

// Plus adds what is free elsewhere.
func (f Free) Plus(o Free) Free { return Free{f.All + o.All, f.Broken + o.Broken} }

// Fragmentation is that of Fragmentation, of several nodes if they were added.
func (f Free) Fragmentation() float64 {
	if f.All == 0 {
		return 0
	}
	return float64(f.Broken) / float64(f.All)
}

// Room is how many devices of a shape still fit.
type Room struct {
	Shape string
	N     int
}

// Rooms are what still fits of each shape, each counted as if nothing else was allocated, in the order of the model.
func (s *State) Rooms() []Room {
	var rooms []Room
	at := map[string]int{}
	var matches []Bits
	for i := range s.model.Devices {
		shape := s.model.Devices[i].Shape
		n, ok := at[shape]
		if !ok {
			n = len(rooms)
			at[shape] = n
			rooms = append(rooms, Room{Shape: shape})
			matches = append(matches, NewBits(len(s.model.Devices)))
		}
		matches[n].Set(i)
	}
	for n := range rooms {
		rooms[n].N = s.room(matches[n])
	}
	return rooms
}

// room is how many devices of a set fit one after the other.
func (s *State) room(match Bits) int {
	var taken []Use
	for i := match.next(0); i >= 0; i = match.next(i + 1) {
		for !s.tainted.Has(i) && s.admits(Use{Device: i}) && (len(taken) == 0 || taken[len(taken)-1].Device != i || s.limited(i)) {
			s.change(Use{Device: i}, 1)
			taken = append(taken, Use{Device: i})
		}
	}
	for _, u := range taken {
		s.change(u, -1)
	}
	return len(taken)
}

// limited reports whether a shared device can be used up: one whose capacities nobody consumes by default is counted once.
func (s *State) limited(device int) bool {
	for _, c := range s.model.Devices[device].Capacities {
		if c.Default > 0 {
			return true
		}
	}
	return false
}
