// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"context"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// Node is a node whose plugin may follow what is free.
type Node struct {
	*allocator.Node
	// follows is the inventory whose whole GPUs are ordered by what is free; nil where the order stays.
	follows *policy.Node
	// late means that it is ordered by what was free before the last allocation, which before knows; nil: all was.
	late   bool
	before func(*gpu.GPU) bool
}

// NewNode creates a node of which nothing is allocated yet.
func NewNode(published []*resourceapi.ResourceSlice, classes allocator.Classes) (*Node, error) {
	n, err := allocator.NewNode(published, classes)
	if err != nil {
		return nil, err
	}
	return &Node{Node: n}, nil
}

// Follow has the whole GPUs of an inventory ordered by what is free before each allocation, as the plugin does; late has
// it know only what was free before the last allocation.
func (n *Node) Follow(inventory *policy.Node, late bool) { n.follows, n.late = inventory, late }

// Allocate orders the whole GPUs and allocates claims.
func (n *Node) Allocate(ctx context.Context, claims ...*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	n.rank()
	return n.Node.Allocate(ctx, claims...)
}

// AllocateFromClass orders the whole GPUs and allocates devices of a class.
func (n *Node) AllocateFromClass(ctx context.Context, name, class string, count int64) (resourceapi.AllocationResult, error) {
	n.rank()
	return n.Node.AllocateFromClass(ctx, name, class, count)
}

// rank orders the whole GPUs by what is free.
func (n *Node) rank() {
	if n.follows == nil {
		return
	}
	known := n.free()
	if n.late {
		known, n.before = n.before, known
	}
	n.reorder((&nodeslices.View{Free: known}).WholeGPUs(n.follows))
}

// reorder publishes devices in another order, those that it names.
func (n *Node) reorder(order []string) {
	published := slices.Clone(n.Published())
	for i, s := range published {
		at := func(d resourceapi.Device) int { return slices.Index(order, d.Name) }
		if len(s.Spec.Devices) == 0 || at(s.Spec.Devices[0]) < 0 {
			continue
		}
		ordered := *s
		ordered.Spec.Devices = slices.SortedFunc(slices.Values(s.Spec.Devices), func(a, b resourceapi.Device) int { return at(a) - at(b) })
		published[i] = &ordered
	}
	n.Publish(published)
}

// free reports whether nothing of a GPU is allocated now.
func (n *Node) free() func(g *gpu.GPU) bool {
	allocated := map[string]bool{}
	for _, s := range n.Published() {
		for _, d := range s.Spec.Devices {
			if n.Allocated(s.Spec.Driver, s.Spec.Pool.Name, d.Name) {
				allocated[GPUOf(d.Name)] = true
			}
		}
	}
	return func(g *gpu.GPU) bool { return !allocated[g.PCI.DeviceName()] }
}

// GPUOf is the name of the whole GPU that a device is of: "gpu-" and the four parts of a PCI address.
func GPUOf(device string) string {
	parts := strings.Split(device, "-")
	return strings.Join(parts[:min(len(parts), 5)], "-")
}

// together reports whether whole GPUs are of one NVLink group or of one NUMA node.
func together(inventory *policy.Node, devices []string) bool {
	groups := gpu.NVLinkGroups(inventory.GPUs)
	sameGroup, sameNode := true, true
	first := inventory.Find(devices[0])
	for _, d := range devices {
		g := inventory.Find(d)
		sameGroup = sameGroup && groups[g.PCI] != "" && groups[g.PCI] == groups[first.PCI]
		sameNode = sameNode && g.NUMANode != nil && first.NUMANode != nil && *g.NUMANode == *first.NUMANode
	}
	return sameGroup || sameNode
}
