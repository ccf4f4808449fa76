// SPDX-License-Identifier: Apache-2.0

package gpu

// Share is a way in which many claims have one GPU at the same time.
type Share string

// The ways to share a GPU; their values are those of the attribute "type".
const (
	// TimeSlice: the driver gives each process its turn.
	TimeSlice Share = "timeslice"
	// MPS: one server process runs the work of all concurrently.
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

// IsShare reports whether many claims can have the shape at once.
func (s Shape) IsShare() bool { return s.Share != "" }

// IsWhole reports whether the shape is the whole GPU for one claim.
func (s Shape) IsWhole() bool { return s.Profile == nil && s.Share == "" }
