// SPDX-License-Identifier: Apache-2.0

package gpu

// Share is a way in which many claims have one GPU at the same time.
type Share string

// The ways to share a GPU; their values are those of the attribute "type".
const (
	// TimeSlice: the driver gives each process its turn.
	TimeSlice Share = "timeslice"
	// MPS: one server process runs the work of all side by side.
	MPS Share = "mps"
)

// Shares lists them in the order in which a GPU's shared devices are published.
func Shares() []Share { return []Share{TimeSlice, MPS} }

// Names of the capacities that claims take parts of.
const (
	CapacityMemory = "memory" // bytes
	CapacityShares = "shares"
	CapacityCores  = "cores" // percent of the multiprocessors
)

// Sharing is what a shared GPU has of everything, and how it is cut. Nothing holds a claim to its part but what
// Enforcement says.
type Sharing struct {
	// Shares is how many claims have the GPU at once.
	Shares int64
	// Memory in bytes; Total is zero where the board does not tell its memory.
	Memory Cut
	// Cores in percent of the multiprocessors; Total is zero where they are not cut.
	Cores Cut
	// SharedMemory is the size in bytes of the /dev/shm that clients of an MPS server share.
	SharedMemory int64
	Enforcement  Enforcement
	// Interval of time slices, and Priority of MPS clients, for claims that ask for none; their values are those of a
	// policy's timeSlice.interval and mps.priority. Empty for what the driver does by itself.
	Interval, Priority string
}

// Cut is an amount that shares take parts of: Default where a claim does not say, else Minimum and whole steps more.
type Cut struct {
	Total, Default, Minimum, Step int64
}

// NewCut cuts a total into a number of equal parts by default, rounded down to a step so that as many fit. It is empty
// where not even the minimum is there.
func NewCut(total int64, parts int64, minimum, step int64) Cut {
	if total < minimum {
		return Cut{}
	}
	c := Cut{Total: total, Minimum: minimum, Step: step, Default: minimum}
	if part := total / parts; part > minimum {
		c.Default = minimum + (part-minimum)/step*step
	}
	return c
}

// Enforcement is what holds a claim to its memory; its values are those of the attribute "memoryEnforcement".
type Enforcement string

// What holds a claim to its memory.
const (
	// NotEnforced: the scheduler counts, nothing stops a process from taking more.
	NotEnforced Enforcement = "none"
	// EnforcedPerProcess: MPS refuses a process more than the limit; each process of a container has the limit to itself.
	EnforcedPerProcess Enforcement = "process"
	// EnforcedPerCgroup: the driver refuses a container more than its part.
	EnforcedPerCgroup Enforcement = "cgroup"
)

// Sharing is how a GPU is shared in a way, or nil.
func (g *GPU) Sharing(s Share) *Sharing {
	switch o := g.offer(); s {
	case TimeSlice:
		return o.TimeSlice
	case MPS:
		return o.MPS
	default:
		return nil
	}
}

// IsShare tells whether many claims can have the shape at once.
func (s Shape) IsShare() bool { return s.Share != "" }

// IsWhole tells whether the shape is the whole GPU for one claim.
func (s Shape) IsWhole() bool { return s.Profile == nil && s.Share == "" }

// middleOut is the order of n things from the middle outward: 3, 4, 2, 5, 1, 6, 0, 7 of eight.
func middleOut(n int) []int {
	order := make([]int, 0, n)
	for low, high := (n-1)/2, (n-1)/2+1; low >= 0 || high < n; low, high = low-1, high+1 {
		if low >= 0 && low < n {
			order = append(order, low)
		}
		if high < n {
			order = append(order, high)
		}
	}
	return order
}
