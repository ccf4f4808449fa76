// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// target is a shared GPU or partition.
type target struct {
	gpu     *gpu.GPU
	profile *gpu.Profile // of a partition; nil for the whole GPU
}

// String is "GPU" or "partition".
func (t target) String() string {
	if t.profile != nil {
		return "partition"
	}
	return "GPU"
}

// memory in bytes; zero if the board does not report it.
func (t target) memory() int64 {
	switch {
	case t.profile != nil:
		return int64(min(t.profile.Memory, 1<<62))
	case hasMemory(t.gpu):
		return int64(*t.gpu.Memory)
	default:
		return 0
	}
}

// leastCores is the least percentage of the multiprocessors that MPS can give.
func (t target) leastCores() int64 {
	if t.profile == nil {
		return 1
	}
	return t.profile.LeastCores()
}

// timeSlice returns how a GPU or partition is time-sliced, or why it is not.
func timeSlice(p *v1alpha1.TimeSlicePolicy, t target, caps Capabilities) (*Sharing, string) {
	if p == nil {
		p = &v1alpha1.TimeSlicePolicy{}
	}
	s := &Sharing{
		Shares: or(p.Shares, v1alpha1.DefaultTimeSliceShares), Enforcement: NotEnforced, Interval: string(p.Interval),
		Spread: p.Placement == v1alpha1.PlacementSpread,
	}
	if caps.Shares != nil {
		return nil, caps.Shares.Error()
	}
	var why string
	if s.Memory, why = memory(p.Memory, t, s.Shares); why != "" {
		return nil, why
	}
	// The driver limits containers on GPUs out of MIG mode only (NVIDIA MPS documentation, "Memory partitioning").
	if s.Memory.Total > 0 && t.profile == nil && caps.CgroupMemory != nil && caps.CgroupMemory(t.gpu) {
		s.Enforcement = EnforcedPerCgroup
	}
	return s, ""
}

// mps returns how a GPU or partition is shared by MPS, or why it is not.
func mps(p *v1alpha1.MPSPolicy, node *gpu.Node, t target, caps Capabilities) (*Sharing, string) {
	if p == nil {
		p = &v1alpha1.MPSPolicy{}
	}
	clients, why := mpsClients(node, t)
	if err := cmp.Or(caps.MPS, caps.Shares); why == "" && err != nil {
		why = err.Error()
	}
	if why != "" {
		return nil, why
	}
	s := &Sharing{
		Shares:       min(or(p.Shares, v1alpha1.DefaultMPSShares), clients),
		SharedMemory: inBytes(p.SharedMemory, v1alpha1.DefaultSharedMemory),
		Enforcement:  NotEnforced,
		Priority:     string(p.Priority),
		Spread:       p.Placement == v1alpha1.PlacementSpread,
	}
	s.Cores = cores(p.Cores, s.Shares, t)
	if s.Memory, why = memory(p.Memory, t, s.Shares); why != "" {
		return nil, why
	}
	// A partition's server has the same limits, but their enforcement has not been verified on real hardware.
	if s.Memory.Total > 0 && t.profile == nil {
		s.Enforcement = EnforcedPerProcess
	}
	return s, ""
}

// MPS limits the memory and multiprocessors of clients from Volta on; it accepts 48 clients per device, and 60 from driver release
// 590 on (NVIDIA MPS documentation, "Limitations").
const (
	voltaMajor        = 7
	mpsClientsBefore  = 48
	mpsClientsRelease = 590
)

// mpsClients is the number of clients that MPS accepts on a GPU or partition, or why it cannot be used. On a partition it is
// proportional to its compute slices (NVIDIA MIG user guide, "CUDA Concurrency Mechanisms").
func mpsClients(node *gpu.Node, t target) (clients int64, why string) {
	g := t.gpu
	if g.ComputeCapability == nil || g.ComputeCapability.Major < voltaMajor {
		return 0, "MPS limits its clients from compute capability 7.0 (Volta) on, and the GPU is older or does not say"
	}
	clients = mpsClientsBefore
	major, _, _ := strings.Cut(node.DriverVersion, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= mpsClientsRelease {
		clients = v1alpha1.MaxMPSShares
	}
	if t.profile == nil {
		return clients, ""
	}
	most := 1
	for i := range g.MIG.Profiles {
		most = max(most, g.MIG.Profiles[i].ComputeSlices)
	}
	return max(1, clients*int64(t.profile.ComputeSlices)/int64(most)), ""
}

// hasMemory reports whether the board reports its memory.
func hasMemory(g *gpu.GPU) bool {
	const notAvailable = 1 << 62 // all ones is NVML's "not available"
	return g.Memory != nil && *g.Memory <= notAvailable
}

// memory divides the memory of a GPU or partition, or returns why it cannot as the policy wants: shares with uncounted memory would
// be worse than none. It is empty if the board does not report its memory.
func memory(c *v1alpha1.MemoryCut, t target, shares int64) (Cut, string) {
	total := t.memory()
	if total == 0 {
		return Cut{}, ""
	}
	if c == nil {
		c = &v1alpha1.MemoryCut{}
	}
	cut := NewCut(total, shares, inBytes(c.Minimum, v1alpha1.DefaultMemoryMinimum), inBytes(c.Step, v1alpha1.DefaultMemoryStep))
	if cut.Total == 0 {
		return Cut{}, fmt.Sprintf("the policy's minimum share of memory exceeds the %d MiB of the %s", total>>20, t)
	}
	if cut.Default = inBytes(c.Default, cut.Default); cut.Default > total {
		return Cut{}, fmt.Sprintf("the policy's default share of memory, %s, exceeds the %d MiB of the %s", c.Default, total>>20, t)
	}
	return cut, ""
}

// cores divides the multiprocessors. A percentage of a partition may be less than one multiprocessor, so the default minimum is the
// least step that is at least one.
func cores(c *v1alpha1.CoreCut, shares int64, t target) Cut {
	if c == nil {
		c = &v1alpha1.CoreCut{}
	}
	minimum, step := or(c.Minimum, v1alpha1.DefaultCoreMinimum), or(c.Step, v1alpha1.DefaultCoreStep)
	if least := t.leastCores(); c.Minimum == nil && minimum < least {
		if minimum += (least - minimum + step - 1) / step * step; minimum > allCores {
			minimum = least
		}
	}
	cut := NewCut(allCores, shares, minimum, step)
	cut.Default = or(c.Default, cut.Default)
	return cut
}

// allCores is all multiprocessors, in percent.
const allCores = 100

func or(value *int32, otherwise int64) int64 {
	if value == nil {
		return otherwise
	}
	return int64(*value)
}

func inBytes(q *resource.Quantity, otherwise int64) int64 {
	if q == nil {
		return otherwise
	}
	return q.Value()
}
