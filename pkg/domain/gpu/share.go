// SPDX-License-Identifier: Apache-2.0

package gpu

// Share is a way in which many claims have one GPU or partition at the same time.
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

// Type is what a shape is, as the attribute "type" says it.
type Type string

// The types of devices. DeviceClasses select by them, so that none gives a whole GPU for a slice.
const (
	TypeGPU          Type = "gpu" // exclusive whole GPU
	TypeMIG          Type = "mig" // exclusive partition
	TypeTimeSlice         = Type(TimeSlice)
	TypeMPS               = Type(MPS)
	TypeMIGTimeSlice      = TypeMIG + "-" + TypeTimeSlice // partition shared in time
	TypeMIGMPS            = TypeMIG + "-" + TypeMPS       // partition shared by MPS
)

// Type of the shape.
func (s Shape) Type() Type { return TypeOf(s.IsPartition(), s.Share) }

// TypeOf is the type of a GPU or partition and of the way in which it is shared, if it is.
func TypeOf(partition bool, by Share) Type {
	switch {
	case partition && by != "":
		return TypeMIG + "-" + Type(by)
	case partition:
		return TypeMIG
	case by != "":
		return Type(by)
	default:
		return TypeGPU
	}
}

// Names of the capacities that claims take parts of.
const (
	CapacityMemory = "memory" // bytes
	CapacityShares = "shares"
	CapacityCores  = "cores" // percent of the multiprocessors of the GPU or partition
)

// IsShare reports whether many claims can have the shape at once.
func (s Shape) IsShare() bool { return s.Share != "" }

// IsWhole reports whether the shape is the whole GPU for one claim.
func (s Shape) IsWhole() bool { return s.Profile == nil && s.Share == "" }

// LeastCores is the least percentage of the multiprocessors of a partition of the profile that is one of them; 1 where their
// number is not known.
func (p *Profile) LeastCores() int64 {
	if p.Multiprocessors <= 0 {
		return 1
	}
	return max(1, int64((100+p.Multiprocessors-1)/p.Multiprocessors))
}
