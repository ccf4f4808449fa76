package gpu

import (
	"slices"
	"strconv"
)

// Counter is something a GPU has a number of and shapes consume. Two shapes that together need more than there is
// exclude each other; the scheduler keeps the count (KEP-4815).
type Counter struct {
	Name  string
	Value int64
}

// Counters are what the whole GPU has, in a fixed order. They hold what really constrains the board and no more, as
// every counter costs the scheduler time: one for each placement unit of a board that can be partitioned, a single
// one where nothing but the whole can be had.
func (g *GPU) Counters() []Counter {
	if g.MIG.Slices == 0 {
		return []Counter{{Name: "gpu", Value: 1}}
	}
	counters := make([]Counter, 0, g.MIG.Slices)
	for i := range g.MIG.Slices {
		counters = append(counters, Counter{Name: "slice-" + strconv.Itoa(i), Value: 1})
	}
	return counters
}

// WholeOrder gives the order in which whole GPUs are offered: the last first. The scheduler takes the first device
// that fits, so the order is the packing: partitions fill GPUs from the first one, whole GPUs from the last, and the
// two meet as late as possible.
func WholeOrder(gpus []GPU) []*GPU {
	ordered := make([]*GPU, 0, len(gpus))
	for i := range slices.Backward(gpus) {
		ordered = append(ordered, &gpus[i])
	}
	return ordered
}
