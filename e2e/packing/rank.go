// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// Follow has the whole GPUs of an inventory ordered by what is free before each allocation, as the plugin does; late has
// it know only what was free before the last allocation.
func (n *Node) Follow(inventory *policy.Node, late bool) { n.follows, n.late = inventory, late }

// rank orders the whole GPUs by what is free.
func (n *Node) rank() {
	if n.follows == nil {
		return
	}
	known := n.free()
	if n.late {
		known, n.before = n.before, known
	}
	view := publish.View{Free: known}
	order := view.WholeGPUs(n.follows)
	n.slices = slices.Clone(n.slices)
	for i, s := range n.slices {
		at := func(d resourceapi.Device) int { return slices.Index(order, d.Name) }
		if len(s.Spec.Devices) == 0 || at(s.Spec.Devices[0]) < 0 {
			continue
		}
		ranked := *s
		ranked.Spec.Devices = slices.SortedFunc(slices.Values(s.Spec.Devices), func(a, b resourceapi.Device) int { return at(a) - at(b) })
		n.slices[i] = &ranked
	}
}

// free reports whether nothing of a GPU is allocated.
func (n *Node) free() func(g *gpu.GPU) bool {
	allocated := sets.New[string]()
	for id := range n.state.AllocatedDevices {
		allocated.Insert(gpuOf(id.Device.String()))
	}
	for id := range n.state.AllocatedSharedDeviceIDs {
		allocated.Insert(gpuOf(id.Device.String()))
	}
	return func(g *gpu.GPU) bool { return !allocated.Has(g.PCI.DeviceName()) }
}

// gpuOf is the name of the whole GPU that a device is of: "gpu-" and the four parts of a PCI address.
func gpuOf(device string) string {
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
