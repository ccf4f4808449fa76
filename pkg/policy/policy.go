// Package policy turns a NodePolicy into what each GPU of a node offers. It is pure but for Load.
package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Means is what a node can do beside what its boards can.
type Means struct {
	// MPS is nil where a supervisor runs that starts MPS servers, else it says why there is none.
	MPS error
	// Held tells what claims hold of a GPU now: what the policy has no more stays published until they are gone, as the
	// scheduler forgets what devices consume that are gone. nil: nothing.
	Held func(g *gpu.GPU) gpu.Held
	// Partitions are the places of those that exist and can be handed out: a GPU in mode existing offers just them, and a
	// layout is laid over them where it can be. nil: none.
	Partitions func(g *gpu.GPU) []gpu.Place
	// CgroupMemory tells for a GPU whether the driver can hold a container to an amount of its memory.
	CgroupMemory func(g *gpu.GPU) bool
}

// Apply returns a copy of a node whose GPUs offer what a policy says and its means allow.
func Apply(p *v1alpha1.NodePolicy, node *gpu.Node, means Means) *gpu.Node {
	offered := *node
	offered.GPUs = slices.Clone(node.GPUs)
	for i := range offered.GPUs {
		g := &offered.GPUs[i]
		offer := offerOf(find(p, g), node, g, means)
		g.Offer = &offer
	}
	return &offered
}

// find is the first rule that matches a GPU, or one that says nothing.
func find(p *v1alpha1.NodePolicy, g *gpu.GPU) *v1alpha1.Rule {
	for i := range p.Rules {
		if matches(p.Rules[i].Match, g) {
			return &p.Rules[i]
		}
	}
	return &v1alpha1.Rule{}
}

func matches(m *v1alpha1.Match, g *gpu.GPU) bool {
	if m == nil {
		return true
	}
	return (len(m.ProductNames) == 0 || slices.Contains(m.ProductNames, g.ProductName)) &&
		(len(m.UUIDs) == 0 || slices.Contains(m.UUIDs, g.UUID)) &&
		(len(m.Indexes) == 0 || slices.Contains(m.Indexes, int32(g.Index))) &&
		(len(m.PCIAddresses) == 0 || slices.ContainsFunc(m.PCIAddresses, func(a string) bool {
			pci, err := gpu.ParsePCIAddress(a) // NVML, and so nvidia-smi, words it in another way than sysfs
			return err == nil && pci == g.PCI
		}))
}

func offerOf(r *v1alpha1.Rule, node *gpu.Node, g *gpu.GPU, means Means) gpu.Offer {
	listed := func(t v1alpha1.Tier) bool { return r.Tiers == nil || slices.Contains(r.Tiers, t) }
	var held gpu.Held
	if means.Held != nil {
		held = means.Held(g)
	}
	offer := gpu.Offer{Withdrawn: gpu.Tiers{
		Whole:     held.Whole && !listed(v1alpha1.TierExclusive),
		TimeSlice: held.TimeSlice && !listed(v1alpha1.TierTimeSlice),
		MPS:       held.MPS && !listed(v1alpha1.TierMPS),
	}}
	offer.Whole = listed(v1alpha1.TierExclusive) || held.Whole
	switch {
	case listed(v1alpha1.TierMIG):
		offer.Partitions = &gpu.PartitionOffer{Mode: gpu.OnDemand}
	case len(held.Places) > 0:
		offer.Partitions = gpu.NoPlaces(held.Places)
	}
	if listed(v1alpha1.TierTimeSlice) || held.TimeSlice {
		offer.TimeSlice = timeSlice(r.TimeSlice, g, means)
		if why := tooSmall(g, offer.TimeSlice); why != "" {
			offer.TimeSlice, offer.NoTimeSlice = nil, why
		}
	}
	if listed(v1alpha1.TierMPS) || held.MPS {
		clients, why := mpsClients(node, g)
		if why == nil {
			why = means.MPS
		}
		if why != nil {
			offer.NoMPS = why.Error()
		} else {
			offer.MPS = mps(r.MPS, g, clients)
			if why := tooSmall(g, offer.MPS); why != "" {
				offer.MPS, offer.NoMPS = nil, why
			}
		}
	}
	return offer
}

// tooSmall says why a GPU cannot be cut as the policy wants: shares whose memory nobody counts would be worse than none.
func tooSmall(g *gpu.GPU, s *gpu.Sharing) string {
	if hasMemory(g) && s.Memory.Total == 0 {
		return fmt.Sprintf("the policy's smallest share of memory is more than the %d MiB that the GPU has", *g.Memory>>20)
	}
	return ""
}

func timeSlice(p *v1alpha1.TimeSlicePolicy, g *gpu.GPU, means Means) *gpu.Sharing {
	if p == nil {
		p = &v1alpha1.TimeSlicePolicy{}
	}
	s := &gpu.Sharing{Shares: or(p.Shares, v1alpha1.DefaultTimeSliceShares), Enforcement: gpu.NotEnforced}
	s.Memory = memory(p.Memory, g, s.Shares)
	if s.Memory.Total > 0 && means.CgroupMemory != nil && means.CgroupMemory(g) {
		s.Enforcement = gpu.EnforcedPerCgroup
	}
	return s
}

func mps(p *v1alpha1.MPSPolicy, g *gpu.GPU, clients int64) *gpu.Sharing {
	if p == nil {
		p = &v1alpha1.MPSPolicy{}
	}
	cores := p.Cores
	if cores == nil {
		cores = &v1alpha1.CoreCut{}
	}
	s := &gpu.Sharing{
		Shares:       min(or(p.Shares, v1alpha1.DefaultMPSShares), clients),
		SharedMemory: bytes(p.SharedMemory, v1alpha1.DefaultSharedMemory),
		Enforcement:  gpu.NotEnforced,
	}
	s.Cores = gpu.NewCut(100, s.Shares, or(cores.Minimum, v1alpha1.DefaultCoreMinimum), or(cores.Step, v1alpha1.DefaultCoreStep))
	s.Memory = memory(p.Memory, g, s.Shares)
	if s.Memory.Total > 0 {
		s.Enforcement = gpu.EnforcedPerProcess
	}
	return s
}

// MPS limits the memory and multiprocessors of clients from Volta on; it takes 48 clients a device, and 60 from driver
// release 590 on (NVIDIA MPS documentation, "Limitations").
const (
	voltaMajor        = 7
	mpsClientsBefore  = 48
	mpsClientsRelease = 590
)

// mpsClients is how many clients MPS takes on a GPU, or why it cannot be used.
func mpsClients(node *gpu.Node, g *gpu.GPU) (int64, error) {
	if g.ComputeCapability == nil || g.ComputeCapability.Major < voltaMajor {
		return 0, errors.New("MPS limits its clients from compute capability 7.0 (Volta) on, and the GPU is older or does not say")
	}
	major, _, _ := strings.Cut(node.DriverVersion, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= mpsClientsRelease {
		return v1alpha1.MaxMPSShares, nil
	}
	return mpsClientsBefore, nil
}

// hasMemory tells whether the board says how much memory it has.
func hasMemory(g *gpu.GPU) bool {
	const notAvailable = 1 << 62 // all ones is NVML's "not available"
	return g.Memory != nil && *g.Memory <= notAvailable
}

// memory cuts a GPU's memory; it is empty where the board does not tell it.
func memory(c *v1alpha1.MemoryCut, g *gpu.GPU, shares int64) gpu.Cut {
	if !hasMemory(g) {
		return gpu.Cut{}
	}
	if c == nil {
		c = &v1alpha1.MemoryCut{}
	}
	return gpu.NewCut(int64(*g.Memory), shares, bytes(c.Minimum, v1alpha1.DefaultMemoryMinimum), bytes(c.Step, v1alpha1.DefaultMemoryStep))
}

func or(value *int32, otherwise int64) int64 {
	if value == nil {
		return otherwise
	}
	return int64(*value)
}

func bytes(q *resource.Quantity, otherwise int64) int64 {
	if q == nil {
		return otherwise
	}
	return q.Value()
}
