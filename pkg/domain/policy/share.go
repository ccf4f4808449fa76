// SPDX-License-Identifier: Apache-2.0

package policy

// Sharing is the totals of a shared GPU or partition, and how they are divided. Claims are limited to their part only as
// Enforcement says.
type Sharing struct {
	// Shares is the maximum number of concurrent claims.
	Shares int64
	// Memory in bytes; Total is zero if the board does not report its memory.
	Memory Cut
	// Cores in percent of the multiprocessors; Total is zero if they are not divided.
	Cores Cut
	// SharedMemory is the size in bytes of the /dev/shm that clients of an MPS server share.
	SharedMemory int64
	Enforcement  Enforcement
	// Interval of time slices, and Priority of MPS clients, for claims that request none; their values are those of a policy's
	// timeSlice.interval and mps.priority. Empty for the driver's default.
	Interval, Priority string
	// Spread prefers devices with few claims, instead of those that have any.
	Spread bool
}

// Cut is an amount that shares divide: Default for a claim without an amount, otherwise Minimum plus whole steps.
type Cut struct {
	Total, Default, Minimum, Step int64
}

// NewCut divides a total into a number of equal parts by default, rounded down to a step so that all fit. It is empty if the total
// is below the minimum.
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

// Enforcement is how a claim is limited to its memory; its values are those of the attribute "memoryEnforcement".
type Enforcement string

// How a claim is limited to its memory.
const (
	// NotEnforced: the scheduler counts, but nothing stops a process from using more.
	NotEnforced Enforcement = "none"
	// EnforcedPerProcess: MPS limits each process of a container separately.
	EnforcedPerProcess Enforcement = "process"
	// EnforcedPerCgroup: the driver limits the container as a whole.
	EnforcedPerCgroup Enforcement = "cgroup"
)
