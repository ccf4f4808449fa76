package packing

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// Rank orders the whole GPUs by what is free now, as the plugin does when it learns of a change.
func (n *Node) Rank(inventory *gpu.Node) {
	view := publish.View{Free: n.free()}
	order := view.WholeGPUs(inventory)
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

// free tells of a GPU whether nothing of it is allocated.
func (n *Node) free() func(g *gpu.GPU) bool {
	held := sets.New[string]()
	for id := range n.state.AllocatedDevices {
		held.Insert(gpuOf(id.Device.String()))
	}
	for id := range n.state.AllocatedSharedDeviceIDs {
		held.Insert(gpuOf(id.Device.String()))
	}
	return func(g *gpu.GPU) bool { return !held.Has(g.PCI.DeviceName()) }
}

// gpuOf is the name of the whole GPU that a device is of: "gpu-" and the four parts of a PCI address.
func gpuOf(device string) string {
	parts := strings.Split(device, "-")
	return strings.Join(parts[:min(len(parts), 5)], "-")
}
