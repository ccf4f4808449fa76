// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"math/rand/v2"
)

// Kind is something that workloads ask for.
type Kind struct {
	// Class is the DeviceClass.
	Class string
	// Count is how many devices a request is for; zero stands for one.
	Count int64
	// Slices is how many compute slices it takes, of the seven of each GPU.
	Slices int
	// Weight is how often it is asked for, relative to the others.
	Weight int
}

// Mix is what the workloads of a node ask for.
type Mix struct {
	Name  string
	Kinds []Kind
}

// gpuSlices are the compute slices of a GPU.
const gpuSlices = 7

// Mixes for boards whose partitions are those of an H100 80 GB. The limit that is published is for these.
var Mixes = []Mix{
	{Name: "MIG", Kinds: []Kind{
		{Class: "mig-1g.10gb.cleave.dev", Slices: 1, Weight: 35},
		{Class: "mig-1g.20gb.cleave.dev", Slices: 1, Weight: 10},
		{Class: "mig-2g.20gb.cleave.dev", Slices: 2, Weight: 25},
		{Class: "mig-3g.40gb.cleave.dev", Slices: 3, Weight: 15},
		{Class: "mig-4g.40gb.cleave.dev", Slices: 4, Weight: 10},
		{Class: "mig-7g.80gb.cleave.dev", Slices: 7, Weight: 5},
	}},
	{Name: "MIG+whole", Kinds: []Kind{
		{Class: "mig-1g.10gb.cleave.dev", Slices: 1, Weight: 35},
		{Class: "mig-1g.20gb.cleave.dev", Slices: 1, Weight: 10},
		{Class: "mig-2g.20gb.cleave.dev", Slices: 2, Weight: 20},
		{Class: "mig-3g.40gb.cleave.dev", Slices: 3, Weight: 10},
		{Class: "mig-4g.40gb.cleave.dev", Slices: 4, Weight: 10},
		{Class: "gpu.cleave.dev", Slices: 7, Weight: 15},
	}},
}

// SharedMixes are for boards that are also shared in time, by four.
var SharedMixes = []Mix{
	{Name: "MIG+whole+shared", Kinds: []Kind{
		{Class: "mig-1g.10gb.cleave.dev", Slices: 1, Weight: 30},
		{Class: "mig-1g.20gb.cleave.dev", Slices: 1, Weight: 10},
		{Class: "mig-2g.20gb.cleave.dev", Slices: 2, Weight: 15},
		{Class: "mig-3g.40gb.cleave.dev", Slices: 3, Weight: 10},
		{Class: "mig-4g.40gb.cleave.dev", Slices: 4, Weight: 5},
		{Class: "gpu.cleave.dev", Slices: 7, Weight: 10},
		{Class: "timeslice.cleave.dev", Slices: 2, Weight: 20}, // a quarter of seven, rounded
	}},
}

// WholeMixes are for any board: whole GPUs for one claim at a time.
var WholeMixes = []Mix{
	{Name: "1, 2 and 4 GPUs", Kinds: []Kind{
		{Class: "gpu.cleave.dev", Count: 1, Slices: 7, Weight: 50},
		{Class: "gpu.cleave.dev", Count: 2, Slices: 14, Weight: 30},
		{Class: "gpu.cleave.dev", Count: 4, Slices: 28, Weight: 20},
	}},
}

// ClusterMix is for clusters whose nodes have eight GPUs each: that of deployments/examples/workloads/mixed.yaml without its
// shares. What takes a whole node is what a scheduler that scatters partitions has no place for.
var ClusterMix = Mix{Name: "MIG+whole+nodes", Kinds: []Kind{
	{Class: "gpu.cleave.dev", Count: 8, Slices: 56, Weight: 6},
	{Class: "gpu.cleave.dev", Count: 2, Slices: 14, Weight: 40},
	{Class: "mig-1g.10gb.cleave.dev", Slices: 1, Weight: 300},
	{Class: "mig-2g.20gb.cleave.dev", Slices: 2, Weight: 12},
	{Class: "mig-3g.40gb.cleave.dev", Slices: 3, Weight: 140},
}}

// Loads are what is asked for in percent of the compute slices that there are.
var Loads = []int{50, 70, 90}

// Request arrives and, if it is served, leaves. Times are in units of the mean holding time.
type Request struct {
	Arrive, Leave float64
	Kind          Kind
}

// NewTrace draws requests: arrivals at random times, exponential holding times. The same arguments give the same trace.
func NewTrace(mix Mix, load, gpus, requests int, seed uint64) []Request {
	weights, weighted := mix.weights()
	rate := float64(load) / 100 * float64(gpus*gpuSlices) * float64(weights) / float64(weighted)
	random := rand.New(rand.NewPCG(seed, uint64(load)))
	trace := make([]Request, requests)
	now := 0.0
	for i := range trace {
		now += random.ExpFloat64() / rate
		trace[i] = Request{Arrive: now, Leave: now + random.ExpFloat64(), Kind: draw(mix, random.IntN(weights))}
	}
	return trace
}

// draw returns the kind that a number below the sum of all weights falls on.
func draw(mix Mix, n int) Kind {
	for _, k := range mix.Kinds {
		if n < k.Weight {
			return k
		}
		n -= k.Weight
	}
	return mix.Kinds[len(mix.Kinds)-1]
}

// Running is how many requests are served at a time, on average, if none is rejected.
func (m Mix) Running(load, gpus int) int {
	weights, weighted := m.weights()
	return load * gpus * gpuSlices * weights / weighted / 100
}

// weights are the sum of the kinds' weights, and that of the compute slices that they stand for.
func (m Mix) weights() (sum, weighted int) {
	for _, k := range m.Kinds {
		sum += k.Weight
		weighted += k.Weight * k.Slices
	}
	return sum, weighted
}
