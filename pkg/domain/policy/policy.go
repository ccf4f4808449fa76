// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Capabilities describes what the node supports beyond its GPUs.
type Capabilities struct {
	// MPS is nil if a supervisor runs that starts MPS servers, or why there is none.
	MPS error
	// Shares is nil if the cluster can count shares of GPUs, or why it cannot.
	Shares error
	// SharesBeside is nil if the cluster counts shares together with other devices of a GPU, or why it does not: then GPUs are
	// shared only if they offer nothing else, and offer nothing else while shares of them are allocated.
	SharesBeside error
	// Counters is nil if the cluster keeps the counters through which devices of a GPU exclude each other, or why it does not: then
	// each GPU offers one tier, of devices that can all be allocated at once.
	Counters error
	// Allocated returns a GPU's current allocations: their devices stay published even if the policy no longer has them, because
	// the scheduler forgets the consumption of devices that are no longer published. nil: none.
	Allocated func(g *gpu.GPU) gpu.Allocated
	// Partitions are the places of existing partitions that can be offered: a GPU in mode existing offers just them, and a layout
	// reuses them where possible. nil: none.
	Partitions func(g *gpu.GPU) []gpu.Place
	// Layout are the places at which the layout of a GPU was offered before, across boots: it stays there unless existing or
	// allocated partitions are in the way. nil: none.
	Layout func(g *gpu.GPU) []gpu.Place
	// CgroupMemory reports whether the driver can limit a container's memory on a GPU.
	CgroupMemory func(g *gpu.GPU) bool
}

// allocated returns the allocations of a GPU.
func (m Capabilities) allocated(g *gpu.GPU) gpu.Allocated {
	if m.Allocated == nil {
		return gpu.Allocated{}
	}
	return m.Allocated(g)
}

// partitions are the places of the existing partitions of a GPU, in order of start.
func (m Capabilities) partitions(g *gpu.GPU) []gpu.Place {
	if m.Partitions == nil {
		return nil
	}
	places := slices.Clone(m.Partitions(g))
	slices.SortFunc(places, func(a, b gpu.Place) int { return a.Placement.Start - b.Placement.Start })
	return places
}

// layout are the places at which the layout of a GPU was offered before.
func (m Capabilities) layout(g *gpu.GPU) []gpu.Place {
	if m.Layout == nil {
		return nil
	}
	return m.Layout(g)
}

// Apply returns the offers of a node's GPUs under a policy, as far as its capabilities allow. Anything impossible is left out, with
// the reason: finding contradictions between policy and boards is up to Check.
func Apply(p *v1alpha1.NodePolicy, node *gpu.Node, caps Capabilities) *Node {
	offered := &Node{Node: node, Offers: make([]Offer, 0, len(node.GPUs))}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		_, rule := find(p, g)
		offered.Offers = append(offered.Offers, offerOf(rule, node, g, caps))
	}
	return offered
}

// find returns the first rule that matches a GPU, with its index, or an empty rule of index -1.
func find(p *v1alpha1.NodePolicy, g *gpu.GPU) (int, *v1alpha1.Rule) {
	for i := range p.Rules {
		if matches(p.Rules[i].Match, g) {
			return i, &p.Rules[i]
		}
	}
	return -1, &v1alpha1.Rule{}
}

func matches(m *v1alpha1.Match, g *gpu.GPU) bool {
	if m == nil {
		return true
	}
	return (len(m.ProductNames) == 0 || slices.Contains(m.ProductNames, g.ProductName)) &&
		(len(m.UUIDs) == 0 || slices.Contains(m.UUIDs, g.UUID)) &&
		(len(m.Indexes) == 0 || slices.Contains(m.Indexes, int32(g.Index))) &&
		(len(m.DeviceIDs) == 0 || slices.ContainsFunc(m.DeviceIDs, func(id string) bool { return hasID(g, id) })) &&
		(len(m.PCIAddresses) == 0 || slices.ContainsFunc(m.PCIAddresses, func(a string) bool {
			pci, err := gpu.ParsePCIAddress(a) // NVML, and so nvidia-smi, formats it differently from sysfs
			return err == nil && pci == g.PCI
		})) &&
		inRange(m.Memory, g)
}

// hasID reports whether a GPU has a PCI device ID, and the subsystem's if that follows.
func hasID(g *gpu.GPU, id string) bool {
	device, subsystem, both := strings.Cut(id, ":")
	is := func(text string, known uint32) bool {
		n, err := strconv.ParseUint(text, 0, 32)
		return err == nil && known != 0 && n == uint64(known)
	}
	return is(device, g.PCIDeviceID) && (!both || is(subsystem, g.PCISubsystemID))
}

// inRange reports whether a GPU's memory is in a range.
func inRange(r *v1alpha1.MemoryRange, g *gpu.GPU) bool {
	if r == nil {
		return true
	}
	return hasMemory(g) &&
		(r.Min == nil || r.Min.CmpInt64(int64(*g.Memory)) <= 0) &&
		(r.Max == nil || r.Max.CmpInt64(int64(*g.Memory)) >= 0)
}

func offerOf(r *v1alpha1.Rule, node *gpu.Node, g *gpu.GPU, caps Capabilities) Offer {
	tiers := r.OfferedTiers()
	beside := tiers // those of which the GPU may have devices at once
	if isPartitioned(r, g, caps) {
		tiers = []v1alpha1.Tier{v1alpha1.TierMIG}
		beside = tiers
	} else if r.MIG.ModeOfUse() == v1alpha1.MIGExisting {
		beside = slices.DeleteFunc(slices.Clone(tiers), func(t v1alpha1.Tier) bool { return t == v1alpha1.TierMIG })
	}
	if caps.SharesBeside != nil && (len(beside) != 1 || listsPartitions(beside)) {
		caps.Shares = cmp.Or(caps.Shares, caps.SharesBeside)
	}
	if caps.Counters != nil {
		return uncounted(r, node, g, caps, tiers)
	}
	if caps.SharesBeside != nil && sharesBeside(caps.allocated(g), beside) {
		return offerTiers(r, node, g, caps, nil).without(tiers, "", caps.SharesBeside.Error())
	}
	return offerTiers(r, node, g, caps, tiers)
}

// sharesBeside reports whether a GPU has allocated shares and would offer anything besides them, as after a change of its policy: a
// cluster that does not count them would allocate it, too.
func sharesBeside(a gpu.Allocated, tiers []v1alpha1.Tier) bool {
	var shared []v1alpha1.Tier
	if a.TimeSlice {
		shared = append(shared, v1alpha1.TierTimeSlice)
	}
	if a.MPS {
		shared = append(shared, v1alpha1.TierMPS)
	}
	return len(a.Shared) > 0 || len(shared) > 0 && !slices.Equal(shared, tiers)
}

// listsPartitions reports whether partitions are among some tiers.
func listsPartitions(tiers []v1alpha1.Tier) bool { return slices.Contains(tiers, v1alpha1.TierMIG) }

// offerTiers is the offer of a GPU for some tiers, and of its allocated devices.
func offerTiers(r *v1alpha1.Rule, node *gpu.Node, g *gpu.GPU, caps Capabilities, tiers []v1alpha1.Tier) Offer {
	allocated := caps.allocated(g)
	listed := func(t v1alpha1.Tier) bool { return slices.Contains(tiers, t) }
	offer := Offer{
		Excluded: r.Exclude,
		Whole:    listed(v1alpha1.TierExclusive) || allocated.Whole,
		Withdrawn: gpu.Tiers{
			Whole:     allocated.Whole && !listed(v1alpha1.TierExclusive),
			TimeSlice: allocated.TimeSlice && !listed(v1alpha1.TierTimeSlice),
			MPS:       allocated.MPS && !listed(v1alpha1.TierMPS),
		},
		Health:       health(r.Health),
		Publish:      publish(r.Publish),
		PauseClients: r.PauseClients,
	}
	offer.WantsMIG = wantsMIG(r, g)
	if listed(v1alpha1.TierMIG) {
		offer.Partitions, offer.NoPartitions = partitions(r, g, caps)
	}
	if offer.Partitions != nil {
		offer.Partitions.Shared, offer.NotShared = partitionSharing(r, node, g, caps)
	}
	if offer.Partitions == nil && len(allocated.Places)+len(allocated.Shared) > 0 {
		offer.Partitions = NoPlaces(nil)
	}
	for _, at := range allocated.Places {
		if !offer.Partitions.Has(at) {
			offer.Partitions.Kept = append(offer.Partitions.Kept, at)
		}
	}
	offer.keepShared(allocated.Shared, node, g)
	if listed(v1alpha1.TierTimeSlice) || allocated.TimeSlice {
		offer.TimeSlice, offer.NoTimeSlice = timeSlice(r.TimeSlice, target{gpu: g}, caps)
		if offer.NoTimeSlice != "" && allocated.TimeSlice {
			offer.TimeSlice, _ = timeSlice(nil, target{gpu: g}, Capabilities{CgroupMemory: caps.CgroupMemory})
			offer.Withdrawn.TimeSlice = true
		}
	}
	if listed(v1alpha1.TierMPS) || allocated.MPS {
		offer.MPS, offer.NoMPS = mps(r.MPS, node, target{gpu: g}, caps)
		if offer.NoMPS != "" && allocated.MPS {
			offer.MPS, _ = mps(nil, node, target{gpu: g}, Capabilities{})
			offer.Withdrawn.MPS = true
		}
	}
	return offer
}

// isPartitioned reports whether a GPU has partitions that another manager created and the policy offers as they are. The GPU stays
// in MIG mode while they exist, so it cannot be allocated whole or shared, and publishing it as such, even tainted, would distort
// counts of devices by type.
func isPartitioned(r *v1alpha1.Rule, g *gpu.GPU, caps Capabilities) bool {
	return r.MIG.ModeOfUse() == v1alpha1.MIGExisting && len(caps.partitions(g)) > 0
}

// health converts a policy's handling of unhealthy GPUs.
func health(p *v1alpha1.HealthPolicy) Health {
	if p == nil {
		return Health{}
	}
	h := Health{Effect: string(p.Reaction)}
	for _, xid := range p.IgnoreXIDs {
		h.IgnoreXIDs = append(h.IgnoreXIDs, int(xid))
	}
	return h
}

// publish converts a policy's settings of slices.
func publish(p *v1alpha1.PublishPolicy) Publish {
	if p == nil {
		return Publish{}
	}
	return Publish{Attributes: texts(p.Attributes), OmitAttributes: texts(p.OmitAttributes), Counters: texts(p.Counters)}
}

func texts[T ~string](values []T) []string {
	var list []string
	for _, v := range values {
		list = append(list, string(v))
	}
	return list
}
