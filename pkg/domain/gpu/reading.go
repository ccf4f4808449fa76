// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// WholeGPU stands for the ID of a GPU instance where something concerns the whole GPU.
const WholeGPU = -1

// Reading is what one look at a GPU shows of its use. What the board or its driver does not say is nil; an empty list says that
// there is none.
type Reading struct {
	At time.Time // of this look
	// Energy the GPU has consumed since the driver was loaded, in millijoules.
	Energy *uint64
	// Processes use the GPU.
	Processes []Process
	// Samples are those of process utilization since the previous look; nil at the first.
	Samples []ProcessSample
	// GPM is the activity since the previous look by GPU instance, or of the WholeGPU.
	GPM map[int]Activity
	// Device is the momentary utilization of the whole GPU: the part of time with any kernel, and with any memory access.
	Device *Activity
}

// Activity is a part of time or capacity, 0 to 1; nil if unknown.
type Activity struct {
	// SM is that of the multiprocessors, DRAM that of the memory's bandwidth.
	SM, DRAM *float64
}

// Process is a process with a context on a GPU.
type Process struct {
	PID int
	// GI is its GPU instance, or WholeGPU.
	GI int
	// Memory it uses, in bytes.
	Memory *uint64
}

// ProcessSample is the utilization of a GPU by a process at a time, 0 to 1.
type ProcessSample struct {
	PID      int
	At       time.Time
	SM, DRAM float64
}
