// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodelabels"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

// State is the node's state in the API server.
type State struct {
	Node Node
	// Others are the devices of other DRA drivers that have a PCI address, in order of their slices.
	Others []Device
}

// Node is the needed part of a Node object.
type Node struct {
	// Policy is the value of the label that selects a policy; empty if there is none.
	Policy string
	// PolicyLabel is that label; empty if it is v1alpha1.PolicyLabel.
	PolicyLabel string
	// ReleaseDriver is set while the label asks for the NVIDIA driver to be released.
	ReleaseDriver bool
	// Reset is the value of the label that requests the reset of a GPU; empty if there is none.
	Reset string
	// Paused is a label by which the GPU operator or MIG manager has the GPU's clients leave the node, as "label=value"; empty if
	// there is none.
	Paused string
	// Clients are the labels of clients of the GPUs that the plugin may change; nil for none.
	Clients map[string]string
	// Notices are those that handlers have written on the Node.
	Notices []notices.Notice
	// PluginResources are the extended resources by which a device plugin offers GPUs, in order of their names.
	PluginResources []PluginResource
	// Labels are those that describe its GPUs (package nodelabels), whoever wrote them; nil for none.
	Labels map[string]string
}

// PluginResource is an extended resource of a node.
type PluginResource struct {
	Name string
	// Quantity in the node's capacity, or in allocatable if that is more.
	Quantity string
}

// Device is a device of another DRA driver that has a PCI address.
type Device struct {
	Driver, Name string
	PCI          gpu.PCIAddress
}

// nodeOf returns the needed part of a Node. The first of policyLabels that it has names its policy.
func nodeOf(object any, policyLabels []string) (Node, bool) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return Node{}, false
	}
	kept := Node{ReleaseDriver: v1alpha1.ReleasesDriver(node.Labels), Reset: node.Labels[v1alpha1.ResetLabel],
		Paused: pausedBy(node.Labels), Notices: notices.OfNode(node)}
	for _, key := range nodelabels.Keys() {
		if value, has := node.Labels[key]; has {
			if kept.Labels == nil {
				kept.Labels = map[string]string{}
			}
			kept.Labels[key] = value
		}
	}
	for _, label := range policyLabels {
		if value := node.Labels[label]; value != "" {
			if kept.Policy = value; label != v1alpha1.PolicyLabel {
				kept.PolicyLabel = label
			}
			break
		}
	}
	most := map[string]resource.Quantity{}
	for _, list := range []corev1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
		for name, q := range list {
			if have := most[string(name)]; isGPUResource(string(name)) && q.Cmp(have) > 0 {
				most[string(name)] = q
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(most)) {
		q := most[name]
		kept.PluginResources = append(kept.PluginResources, PluginResource{name, q.String()})
	}
	return kept, true
}

// pausedBy returns the first label, by its name, with which a component of the GPU operator pauses what uses the GPUs.
// k8s-driver-manager sets "paused-for-driver-upgrade" before it unloads the driver (cmd/driver-manager/main.go, maybeSetPaused; after
// another value and "_" on labels of others), mig-parted "paused-for-mig-change" (pkg/mig/reconfigure), vgpu-device-manager
// "paused-for-vgpu-change". From 26.7 on the operator sets nvidia.com/gpu.deploy.client for clients that are not its own
// (controllers/state_manager.go); earlier ones pause only the labels of their own components.
func pausedBy(labels map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if value := labels[name]; strings.HasPrefix(name, "nvidia.com/gpu.deploy.") && strings.Contains(value, "paused-for-") {
			return name + "=" + value
		}
	}
	return ""
}

// isGPUResource reports whether an extended resource belongs to NVIDIA's device plugin, or to one that uses its names:
// nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb. Network cards are also nvidia.com/... (hostdev and the like, of
// NVIDIA's network operator), and so are GPUs passed through to virtual machines, which the driver here does not see.
func isGPUResource(name string) bool {
	return strings.HasPrefix(name, "nvidia.com/gpu") || strings.HasPrefix(name, "nvidia.com/mig-")
}

// devicesOf returns the needed part of another driver's slice.
func devicesOf(object any, driver string) ([]Device, bool) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok || slice.Spec.Driver == driver {
		return nil, false
	}
	var devices []Device
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		if pci, ok := addressOf(d); ok {
			devices = append(devices, Device{slice.Spec.Driver, d.Name, pci})
		}
	}
	return devices, len(devices) > 0
}

// IsCleaveName reports whether a device or counter set has a name of Cleave's, under any driver name: it begins with the GPU's PCI
// address. Names of NVIDIA's driver have a minor number in its place.
func IsCleaveName(name string) bool {
	_, err := gpu.ParseDeviceName(name)
	return err == nil
}

// addressOf is the PCI address of a device: the published one, or the one in a name of Cleave's. Partitions have it only in the
// name.
func addressOf(d *resourceapi.Device) (gpu.PCIAddress, bool) {
	pci, err := gpu.ParseDeviceName(d.Name)
	if address := d.Attributes["resource.kubernetes.io/pciBusID"].StringValue; address != nil {
		pci, err = gpu.ParsePCIAddress(*address)
	}
	return pci, err == nil
}
