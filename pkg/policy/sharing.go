// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// timeSlice is how a GPU is shared in time, or why it is not.
func timeSlice(p *v1alpha1.TimeSlicePolicy, g *gpu.GPU, means Means) (*Sharing, string) {
	if p == nil {
		p = &v1alpha1.TimeSlicePolicy{}
	}
	s := &Sharing{
		Shares: or(p.Shares, v1alpha1.DefaultTimeSliceShares), Enforcement: NotEnforced, Interval: string(p.Interval),
	}
	if means.Shares != nil {
		return nil, means.Shares.Error()
	}
	var why string
	if s.Memory, why = memory(p.Memory, g, s.Shares); why != "" {
		return nil, why
	}
	if s.Memory.Total > 0 && means.CgroupMemory != nil && means.CgroupMemory(g) {
		s.Enforcement = EnforcedPerCgroup
	}
	return s, ""
}

// mps is how a GPU is shared by an MPS server, or why it is not.
func mps(p *v1alpha1.MPSPolicy, node *gpu.Node, g *gpu.GPU, means Means) (*Sharing, string) {
	if p == nil {
		p = &v1alpha1.MPSPolicy{}
	}
	clients, why := mpsClients(node, g)
	if err := cmp.Or(means.MPS, means.Shares); why == "" && err != nil {
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
	}
	s.Cores = cores(p.Cores, s.Shares)
	if s.Memory, why = memory(p.Memory, g, s.Shares); why != "" {
		return nil, why
	}
	if s.Memory.Total > 0 {
		s.Enforcement = EnforcedPerProcess
	}
	return s, ""
}

// MPS limits the memory and multiprocessors of clients from Volta on; it takes 48 clients a device, and 60 from driver
// release 590 on (NVIDIA MPS documentation, "Limitations").
const (
	voltaMajor        = 7
	mpsClientsBefore  = 48
	mpsClientsRelease = 590
)

// mpsClients is how many clients MPS takes on a GPU, or why it cannot be used.
func mpsClients(node *gpu.Node, g *gpu.GPU) (clients int64, why string) {
	if g.ComputeCapability == nil || g.ComputeCapability.Major < voltaMajor {
		return 0, "MPS limits its clients from compute capability 7.0 (Volta) on, and the GPU is older or does not say"
	}
	major, _, _ := strings.Cut(node.DriverVersion, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= mpsClientsRelease {
		return v1alpha1.MaxMPSShares, ""
	}
	return mpsClientsBefore, ""
}

// hasMemory reports whether the board says how much memory it has.
func hasMemory(g *gpu.GPU) bool {
	const notAvailable = 1 << 62 // all ones is NVML's "not available"
	return g.Memory != nil && *g.Memory <= notAvailable
}

// memory cuts a GPU's memory, or says why that cannot be done as the policy wants: shares whose memory nobody counts would
// be worse than none. It is empty where the board does not report its memory.
func memory(c *v1alpha1.MemoryCut, g *gpu.GPU, shares int64) (Cut, string) {
	if !hasMemory(g) {
		return Cut{}, ""
	}
	if c == nil {
		c = &v1alpha1.MemoryCut{}
	}
	total := int64(*g.Memory)
	cut := NewCut(total, shares, inBytes(c.Minimum, v1alpha1.DefaultMemoryMinimum), inBytes(c.Step, v1alpha1.DefaultMemoryStep))
	if cut.Total == 0 {
		return Cut{}, fmt.Sprintf("the policy's smallest share of memory is more than the %d MiB that the GPU has", total>>20)
	}
	if cut.Default = inBytes(c.Default, cut.Default); cut.Default > total {
		return Cut{}, fmt.Sprintf("the policy's default share of memory, %s, is more than the %d MiB that the GPU has", c.Default, total>>20)
	}
	return cut, ""
}

// cores cuts the multiprocessors.
func cores(c *v1alpha1.CoreCut, shares int64) Cut {
	const all = 100 // percent
	if c == nil {
		c = &v1alpha1.CoreCut{}
	}
	cut := NewCut(all, shares, or(c.Minimum, v1alpha1.DefaultCoreMinimum), or(c.Step, v1alpha1.DefaultCoreStep))
	cut.Default = or(c.Default, cut.Default)
	return cut
}

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
