// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"math/bits"
	"slices"
)

// Bits is a set of devices, by their index in the model. Unset bits may lie beyond its end.
type Bits []uint64

// NewBits is an empty set for n devices.
func NewBits(n int) Bits { return make(Bits, (n+63)/64) }

// Has reports whether a device is in the set.
func (b Bits) Has(i int) bool { return i>>6 < len(b) && b[i>>6]>>(i&63)&1 == 1 }

// Set adds a device, which must be within the size of the set.
func (b Bits) Set(i int) { b[i>>6] |= 1 << (i & 63) }

// Count is the number of devices in the set.
func (b Bits) Count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// next is the first device of the set from i on; -1 for none.
func (b Bits) next(i int) int {
	for w := i >> 6; w < len(b); w++ {
		word := b[w]
		if w == i>>6 {
			word &= ^uint64(0) << (i & 63)
		}
		if word != 0 {
			return w<<6 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// Counter is a counter consumed by devices of a pool.
type Counter struct {
	Pool      int
	Set, Name string
	Total     int64
}

// Need is a device's consumption of a counter.
type Need struct {
	Counter int
	Amount  int64
}

// Capacity is a capacity of a shared device. Default is the consumption of requests without an amount. Both are in thousandths.
type Capacity struct {
	Name           string
	Total, Default int64
}

// GPU is a GPU of the model.
type GPU struct {
	Name string
	// Blocks are the model's blocks that the GPU is in.
	Blocks []int
	// Units is its size in placement units: that of its largest device.
	Units int
}

// Device is a published device.
type Device struct {
	Name string
	// Shape is "gpu", "timeslice", "mps", the profile of a partition, or such as "3g.40gb mig-mps" for a shared one.
	Shape string
	// Pool is the index of its pool among the node's, GPU that of its GPU in the model.
	Pool, GPU int
	// Size in placement units.
	Size int
	// Needs are its consumption of counters. A shared device consumes them once.
	Needs []Need
	// Shared devices can be allocated several times, as far as their capacities suffice.
	Shared     bool
	Capacities []Capacity
	// Spread shares are published with the least used device first, so that the order changes with each claim.
	Spread bool
}

// Model is the published devices of a node, in the order in which the allocator tries them. Nodes with the same devices share one.
// It is immutable.
type Model struct {
	Counters []Counter
	// Blocks are groups of GPUs: NVLink groups and NUMA nodes. A GPU is in at most one of a kind.
	Blocks  []string
	GPUs    []GPU
	Devices []Device

	pools   int
	byGPU   [][]int // devices
	byBlock [][]int // GPUs
	// affected are the GPUs whose devices compete with a device: its own and those that consume the same counters.
	affected [][]int
}

// NewModel completes a model. Needs must name counters of the model, and devices GPUs.
func NewModel(counters []Counter, blocks []string, gpus []GPU, devices []Device) *Model {
	m := &Model{
		Counters: counters, Blocks: blocks, GPUs: slices.Clone(gpus), Devices: devices,
		byGPU: make([][]int, len(gpus)), byBlock: make([][]int, len(blocks)), affected: make([][]int, len(devices)),
	}
	users := make([][]int, len(counters)) // GPUs by counter
	for i := range devices {
		d := &devices[i]
		m.pools = max(m.pools, d.Pool+1)
		m.byGPU[d.GPU] = append(m.byGPU[d.GPU], i)
		m.GPUs[d.GPU].Units = max(m.GPUs[d.GPU].Units, d.Size)
		for _, n := range d.Needs {
			if !slices.Contains(users[n.Counter], d.GPU) {
				users[n.Counter] = append(users[n.Counter], d.GPU)
			}
		}
	}
	for _, c := range counters {
		m.pools = max(m.pools, c.Pool+1)
	}
	for g, gpu := range m.GPUs {
		for _, b := range gpu.Blocks {
			m.byBlock[b] = append(m.byBlock[b], g)
		}
	}
	for i := range devices {
		all := []int{devices[i].GPU}
		for _, n := range devices[i].Needs {
			all = append(all, users[n.Counter]...)
		}
		slices.Sort(all)
		m.affected[i] = slices.Compact(all)
	}
	return m
}
