// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Hardware is the state of a machine.
type Hardware struct {
	// Node is the inventory with the policy's offers.
	Node *policy.Node
	// Partitions are the existing ones by the address of their GPU.
	Partitions map[gpu.PCIAddress][]gpu.Partition
	// Records are those of prepared claims, Layouts those of partitions created ahead of claims.
	Records []*records.Record
	Layouts []*records.Layout
	// Used are the plugin's figures of what claims use.
	Used map[UsedKey]Used
	// NoRecords is the plugin's directory of records if it does not exist; else empty.
	NoRecords string
	// Problems are read errors, apart from those of whole GPUs.
	Problems []error
}

// OfMachine is the view of a real or simulated machine. The caller completes its name.
func OfMachine(h Hardware) *View {
	v := &View{Source: Machine, DriverVersion: h.Node.DriverVersion, ConfidentialComputing: h.Node.ConfidentialComputing}
	v.GPUs, v.Connections = []GPU{}, [][]string{}
	if h.Node.CUDAVersion != (gpu.Version{}) {
		v.CUDAVersion = h.Node.CUDAVersion.String()
	}
	for _, p := range h.Node.Problems {
		v.Problems = append(v.Problems, fmt.Sprintf("GPU%d is not served: %v", p.Index, p.Err))
	}
	v.Problems = append(v.Problems, h.orphans()...)
	for _, err := range h.Problems {
		v.Problems = append(v.Problems, err.Error())
	}
	var order []*gpu.GPU
	for i := range h.Node.GPUs {
		order = append(order, &h.Node.GPUs[i])
	}
	slices.SortStableFunc(order, func(a, b *gpu.GPU) int { return cmp.Compare(a.Index, b.Index) })
	shapes, groups := inOrder(h.Node), gpu.NVLinkGroups(h.Node.GPUs)
	for _, g := range order {
		v.GPUs = append(v.GPUs, h.view(g, shapes[g.PCI], groups[g.PCI]))
		var row []string
		for _, other := range order {
			row = append(row, gpu.Connection(g, other).String())
		}
		v.Connections = append(v.Connections, row)
	}
	return v
}

// orphans reports allocations of missing GPUs.
func (h *Hardware) orphans() []string {
	var problems []string
	for _, r := range h.Records {
		for _, name := range r.GPUs() {
			if h.Node.Find(name) == nil {
				problems = append(problems, fmt.Sprintf("claim %s/%s is allocated a part of %s, which is missing",
					r.Claim.Namespace, r.Claim.Name, name))
			}
		}
	}
	return problems
}

// inOrder returns the shapes of each GPU in order of the scheduler's search.
func inOrder(node *policy.Node) map[gpu.PCIAddress][]gpu.Shape {
	order := packing.OrderShapes(node.GPUs, node.Shapes, nil) // within a GPU, allocations do not change the order
	byGPU := map[gpu.PCIAddress][]gpu.Shape{}
	for _, group := range order.Groups() {
		for _, s := range group {
			byGPU[s.GPU.PCI] = append(byGPU[s.GPU.PCI], s)
		}
	}
	return byGPU
}

func (h *Hardware) view(g *gpu.GPU, shapes []gpu.Shape, nvlinkGroup string) GPU {
	offer := h.Node.Offer(g)
	v := GPU{
		Name: "GPU" + strconv.Itoa(g.Index), Device: g.PCI.DeviceName(), PCIAddress: g.PCI.String(), UUID: g.UUID, Product: g.ProductName,
		MIG: "no", PartitionMode: offer.PartitionMode(), Slices: g.MIG.Slices,
		NUMANode: g.NUMANode, CPUAffinity: g.CPUAffinity, PCIeRoot: g.PCIeRoot(), PCIeSwitch: g.PCIeSwitch(),
		NVLinkGroup: nvlinkGroup, Notes: notes(g, offer),
	}
	if g.MIG.Capable {
		v.MIG = onOff(g.MIG.Enabled)
	} else {
		v.PartitionMode = ""
	}
	if g.Memory != nil {
		v.MemoryBytes = memoryBytes(*g.Memory)
	}
	if g.NVLinks != nil {
		v.NVLinks = &g.NVLinks.Active
	}
	if g.Fabric != nil {
		v.FabricClusterUUID, v.FabricCliqueID = g.Fabric.ClusterUUID, &g.Fabric.CliqueID
	}
	for _, s := range shapes {
		v.Shapes = append(v.Shapes, shapeOf(s, offer))
	}
	b := &builder{hardware: h, gpu: g, offer: offer, view: &v, shapes: shapes, full: stockOf(g.Counters()), left: stockOf(g.Counters())}
	b.claims()
	b.partitions()
	b.obstruct()
	v.complete(b.full, b.left)
	return v
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// memoryBytes converts an amount of memory; NVML's "not available", all ones, becomes zero.
func memoryBytes(n uint64) int64 {
	if n > 1<<62 {
		return 0
	}
	return int64(n)
}

func stockOf(counters []gpu.Counter) resourcepool.Stock {
	s := resourcepool.Stock{}
	for _, c := range counters {
		s[resourcepool.CounterID{Name: c.Name}] += c.Value
	}
	return s
}

func shapeOf(s gpu.Shape, offer *policy.Offer) Shape {
	v := Shape{Device: s.Name(), Type: string(s.Type()), needs: stockOf(s.Consumes())}
	if s.IsPartition() {
		at := s.Placement
		v.Profile, v.Placement = s.GPU.MIG.ProfileName(s.Profile.ID), &at
	}
	if s.IsShare() {
		sharing := offer.Sharing(s)
		v.Total = &Amounts{Shares: sharing.Shares, MemoryBytes: sharing.Memory.Total, CoresPercent: sharing.Cores.Total}
		v.usual = Amounts{Shares: 1, MemoryBytes: sharing.Memory.Default, CoresPercent: sharing.Cores.Default}
		v.least = Amounts{Shares: 1, MemoryBytes: sharing.Memory.Minimum, CoresPercent: sharing.Cores.Minimum}
	}
	if offer.IsWithdrawn(s) {
		v.Taints = []Taint{taintOf(nodeslices.TaintWithdrawn, "", effectNoSchedule)}
	}
	return v
}

// Unclaimed are the places of a GPU's complete partitions without a claim, for policies that offer existing partitions.
func (h *Hardware) Unclaimed(g *gpu.GPU) []gpu.Place {
	has := records.AllocatedOf(h.Records)(g)
	allocated := has.AllPlaces()
	var places []gpu.Place
	for _, p := range h.Partitions[g.PCI] {
		if p.CI != nil && !slices.Contains(allocated, p.Place()) {
			places = append(places, p.Place())
		}
	}
	return places
}
