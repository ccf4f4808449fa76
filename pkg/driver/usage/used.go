// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Source is where a figure comes from.
type Source string

// The sources, see docs/decisions/usage-by-claim.md.
const (
	// SourceGPM are the performance counters of a GPU or a GPU instance.
	SourceGPM Source = "gpm"
	// SourceProcess are the claim's processes.
	SourceProcess Source = "process"
	// SourceDevice is the utilization of the whole GPU.
	SourceDevice Source = "device"
)

// Used is what a claim does with a device. What is not known is nil.
type Used struct {
	Key
	// At is the time of the look that it comes from.
	At time.Time
	// Memory of the claim's processes, in bytes.
	Memory *uint64
	// SM and DRAM are the activity since the look before, 0 to 1, of the share of a GPU as of the whole GPU; Source is where
	// both come from.
	SM, DRAM *float64
	Source   Source
	// Energy in joules that was apportioned to the claim since the tracker first saw it.
	Energy *float64
	// LastActive is the last time at which it may have been active; its first look if it never was.
	LastActive *time.Time
	// Seen is of all looks, this one included.
	Seen Seen
}

// Seen is the most that looks have shown of a claim's device since it was prepared, or since the tracker began.
type Seen struct {
	// Since is the time of the first look.
	Since time.Time
	// Memory and SM are the most of what was known; nil if nothing was.
	Memory *uint64
	SM     *float64
	// MemoryLooks and SMLooks are the looks that knew it. In the others it may have been more.
	MemoryLooks, SMLooks int
}

// add counts what a look has shown.
func (s *Seen) add(memory *uint64, sm *float64) {
	if memory != nil {
		s.Memory, s.MemoryLooks = most(s.Memory, *memory), s.MemoryLooks+1
	}
	if sm != nil {
		s.SM, s.SMLooks = most(s.SM, *sm), s.SMLooks+1
	}
}

func most[T uint64 | float64](before *T, now T) *T {
	if before != nil && *before >= now {
		return before
	}
	return &now
}

// Owner is whose a process is.
type Owner struct {
	// Pod is empty for processes of the host.
	Pod types.UID
	// Started is when the process began: its PID may have been another's before.
	Started time.Time
	// MPS marks servers of MPS, which work for other processes.
	MPS bool
}

// Owners are those of processes by PID, without the ended ones; nil if processes cannot be seen.
type Owners map[int]Owner

// Look is a reading of a GPU, with what is needed to understand it.
type Look struct {
	// GPU is the name of the whole GPU's device, UUID its identity: its counters begin anew with another one.
	GPU, UUID string
	Reading   gpu.Reading
	// Holdings of the GPU, and the owners of the processes in Reading.
	Holdings []Holding
	Owners   Owners
}
