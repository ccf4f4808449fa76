package packing

import (
	"math/rand/v2"
)

// Kind is something that workloads ask for.
type Kind struct {
	// Class is the DeviceClass.
	Class string
	// Slices is how many compute slices it takes of a GPU's seven.
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
		{"mig-1g.10gb.cleave.dev", 1, 35},
		{"mig-1g.20gb.cleave.dev", 1, 10},
		{"mig-2g.20gb.cleave.dev", 2, 25},
		{"mig-3g.40gb.cleave.dev", 3, 15},
		{"mig-4g.40gb.cleave.dev", 4, 10},
		{"mig-7g.80gb.cleave.dev", 7, 5},
	}},
	{Name: "MIG+whole", Kinds: []Kind{
		{"mig-1g.10gb.cleave.dev", 1, 35},
		{"mig-1g.20gb.cleave.dev", 1, 10},
		{"mig-2g.20gb.cleave.dev", 2, 20},
		{"mig-3g.40gb.cleave.dev", 3, 10},
		{"mig-4g.40gb.cleave.dev", 4, 10},
		{"gpu.cleave.dev", 7, 15},
	}},
}

// SharedMixes are for boards that are also shared in time, by four.
var SharedMixes = []Mix{
	{Name: "MIG+whole+shared", Kinds: []Kind{
		{"mig-1g.10gb.cleave.dev", 1, 30},
		{"mig-1g.20gb.cleave.dev", 1, 10},
		{"mig-2g.20gb.cleave.dev", 2, 15},
		{"mig-3g.40gb.cleave.dev", 3, 10},
		{"mig-4g.40gb.cleave.dev", 4, 5},
		{"gpu.cleave.dev", 7, 10},
		{"timeslice.cleave.dev", 2, 20}, // a quarter of seven, rounded
	}},
}

// Loads are what is asked for in percent of the compute slices that there are.
var Loads = []int{50, 70, 90}

// Request arrives and, if it is served, leaves. Times are in units of the mean holding time.
type Request struct {
	Arrive, Leave float64
	Kind          Kind
}

// NewTrace draws requests: arrivals at random times, exponential holding times. The same arguments give the same trace.
func NewTrace(mix Mix, load, gpus, requests int, seed uint64) []Request {
	weights, weighted := 0, 0
	for _, k := range mix.Kinds {
		weights += k.Weight
		weighted += k.Weight * k.Slices
	}
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
