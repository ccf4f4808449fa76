// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Capabilities describes what the node supports beyond its GPUs.
type Capabilities struct {
	// MPS is nil where a supervisor runs that starts MPS servers, else it says why there is none.
	MPS error
	// Shares is nil where the cluster can count shares of GPUs, else it says why it cannot.
	Shares error
	// SharesBeside is nil where the cluster counts shares together with what else a GPU offers, else it says why it does not: GPUs
	// are shared then only where they offer nothing else.
	SharesBeside error
	// Counters is nil where the cluster keeps the counters by which devices of a GPU exclude each other, else it says why it
	// does not: each GPU then offers one tier, of devices that can all be allocated at once.
	Counters error
	// Allocated reports what is allocated of a GPU now: what the policy has no more stays published until they are gone, as the
	// scheduler forgets what devices consume that are gone. nil: nothing.
	Allocated func(g *gpu.GPU) gpu.Allocated
	// Partitions are the places of those that exist and can be offered: a GPU in mode existing offers just them, and a
	// layout is laid over them where it can be. nil: none.
	Partitions func(g *gpu.GPU) []gpu.Place
	// Layout are the places in which the layout of a GPU was offered before, over boots: it stays there where nothing that exists
	// or is allocated is in the way. nil: none.
	Layout func(g *gpu.GPU) []gpu.Place
	// CgroupMemory reports of a GPU whether the driver can hold a container to an amount of its memory.
	CgroupMemory func(g *gpu.GPU) bool
}

// allocated is what is allocated of a GPU.
func (m Capabilities) allocated(g *gpu.GPU) gpu.Allocated {
	if m.Allocated == nil {
		return gpu.Allocated{}
	}
	return m.Allocated(g)
}

// partitions are the places of the partitions that exist on a GPU, in order of start.
func (m Capabilities) partitions(g *gpu.GPU) []gpu.Place {
	if m.Partitions == nil {
		return nil
	}
	places := slices.Clone(m.Partitions(g))
	slices.SortFunc(places, func(a, b gpu.Place) int { return a.Placement.Start - b.Placement.Start })
	return places
}

// layout are the places in which the layout of a GPU was offered before.
func (m Capabilities) layout(g *gpu.GPU) []gpu.Place {
	if m.Layout == nil {
		return nil
	}
	return m.Layout(g)
}

// Apply returns what the GPUs of a node offer by a policy, as far as the means allow. What cannot be offered is left out and
// the reason given: a policy that contradicts the boards is for Check to find.
func Apply(p *v1alpha1.NodePolicy, node *gpu.Node, caps Capabilities) *Node {
	offered := &Node{Node: node, Offers: make([]Offer, 0, len(node.GPUs))}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		_, rule := find(p, g)
		offered.Offers = append(offered.Offers, offerOf(rule, node, g, caps))
	}
	return offered
}

// find is the first rule that matches a GPU and its index, or one that says nothing, of index -1.
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
		(len(m.DeviceIDs) == 0 || slices.ContainsFunc(m.DeviceIDs, func(id string) bool {
			n, err := strconv.ParseUint(id, 0, 32)
			return err == nil && g.PCIDeviceID != 0 && n == uint64(g.PCIDeviceID)
		})) &&
		(len(m.PCIAddresses) == 0 || slices.ContainsFunc(m.PCIAddresses, func(a string) bool {
			pci, err := gpu.ParsePCIAddress(a) // NVML, and so nvidia-smi, words it in another way than sysfs
			return err == nil && pci == g.PCI
		})) &&
		inRange(m.Memory, g)
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
	if isPartitioned(r, g, caps) {
		tiers = []v1alpha1.Tier{v1alpha1.TierMIG}
	}
	if caps.SharesBeside != nil && (len(tiers) != 1 || listsPartitions(tiers)) {
		caps.Shares = cmp.Or(caps.Shares, caps.SharesBeside)
	}
	if caps.Counters != nil {
		return uncounted(r, node, g, caps, tiers)
	}
	return offerTiers(r, node, g, caps, tiers)
}

// listsPartitions reports whether partitions are among some tiers.
func listsPartitions(tiers []v1alpha1.Tier) bool { return slices.Contains(tiers, v1alpha1.TierMIG) }

// offerTiers is what a GPU offers of some tiers, and what is allocated of it.
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
		Health:  health(r.Health),
		Publish: publish(r.Publish),
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

// isPartitioned reports whether a GPU has partitions that another manager created and the policy offers as they are. The
// GPU stays in MIG mode as long as they are there, so it cannot be allocated whole or shared, and publishing it as such,
// tainted, would have those who count devices by type count it.
func isPartitioned(r *v1alpha1.Rule, g *gpu.GPU, caps Capabilities) bool {
	return r.MIG.ModeOfUse() == v1alpha1.MIGExisting && len(caps.partitions(g)) > 0
}

// health is what a policy says of unhealthy GPUs.
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

// publish is what a policy says of slices.
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
