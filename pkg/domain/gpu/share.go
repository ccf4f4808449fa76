// SPDX-License-Identifier: Apache-2.0

package gpu

// Share is a way in which many claims use one GPU or partition at the same time.
type Share string

// The ways to share a GPU; their values are those of the attribute "type".
const (
	// TimeSlice: the driver runs processes in turns.
	TimeSlice Share = "timeslice"
	// MPS: one server process runs the work of all clients concurrently.
	MPS Share = "mps"
)

// Shares lists them in the order in which a GPU's shared devices are published.
func Shares() []Share { return []Share{TimeSlice, MPS} }

// Type is the type of a shape, as in the attribute "type".
type Type string

// The types of devices. DeviceClasses select by them, so that none allocates a whole GPU in place of a partition.
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

// TypeOf is the type of a GPU or partition, with its way of sharing, if any.
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

// Names of the capacities that claims share.
const (
	CapacityMemory = "memory" // bytes
	CapacityShares = "shares"
	CapacityCores  = "cores" // percent of the multiprocessors of the GPU or partition
)

// IsShare reports whether many claims can share the shape.
func (s Shape) IsShare() bool { return s.Share != "" }

// IsWhole reports whether the shape is the whole GPU for one claim.
func (s Shape) IsWhole() bool { return s.Profile == nil && s.Share == "" }

// LeastCores is the least percentage of a partition's multiprocessors that is a whole one; 1 if their number is unknown.
func (p *Profile) LeastCores() int64 {
	if p.Multiprocessors <= 0 {
		return 1
	}
	return max(1, int64((100+p.Multiprocessors-1)/p.Multiprocessors))
}
