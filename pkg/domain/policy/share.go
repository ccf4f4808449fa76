// SPDX-License-Identifier: Apache-2.0

package policy

// Sharing is what a shared GPU or partition has of everything, and how it is cut. Nothing holds a claim to its part but what
// Enforcement says.
type Sharing struct {
	// Shares is how many claims have it at once.
	Shares int64
	// Memory in bytes; Total is zero where the board does not report its memory.
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
