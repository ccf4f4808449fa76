// SPDX-License-Identifier: Apache-2.0

package gpu

import "slices"

// NVLinks are the links of a GPU to others.
type NVLinks struct {
	// Active is how many links are up (nvmlDeviceGetNvLinkState).
	Active int
	// Version of the links that are up (nvmlDeviceGetNvLinkVersion), such as 4.0; zero if unknown.
	Version Version
	// MBps is the total speed of the links that are up in one direction, in megabytes per second (NVML_FI_DEV_NVLINK_GET_SPEED); 0
	// if unknown.
	MBps int64
	// Switched reports that the links lead to NVSwitches, through which the GPU reaches all other switched GPUs.
	Switched bool
	// Peers are the GPUs at the other end of direct links, in order of address.
	Peers []NVLinkPeer
}

// NVLinkPeer is a GPU at the other end of links.
type NVLinkPeer struct {
	PCI   PCIAddress
	Links int
}

// FabricState is the state of a GPU's registration with its NVLink fabric (NVML_GPU_FABRIC_STATE_*). Fabric Manager registers the
// GPUs of boards with NVSwitches; until then CUDA returns cudaErrorSystemNotReady.
type FabricState int

// The states of a registration.
const (
	FabricUnsupported FabricState = iota
	FabricNotStarted
	FabricInProgress
	FabricCompleted
	// FabricFailed is not a state of NVML's: the registration has completed with an error, or the GPU's route to the others is
	// unhealthy. Links then stay trained, but GPUs cannot reach each other over them.
	FabricFailed
	// FabricUnmanaged is neither: GPUs before Hopper do not register, but no Fabric Manager runs, which CUDA waits for.
	FabricUnmanaged
)

// Pending reports whether the GPU cannot be used yet.
func (s FabricState) Pending() bool {
	return s == FabricNotStarted || s == FabricInProgress || s == FabricUnmanaged
}

// String names a state in words.
func (s FabricState) String() string {
	switch s {
	case FabricNotStarted:
		return "not started"
	case FabricInProgress:
		return "in progress"
	case FabricCompleted:
		return "completed"
	case FabricFailed:
		return "failed"
	case FabricUnmanaged:
		return "not managed"
	default:
		return "not supported"
	}
}

// Fabric is an NVLink domain of several nodes (nvmlDeviceGetGpuFabricInfoV).
type Fabric struct {
	// ClusterUUID in the usual form of a UUID.
	ClusterUUID string
	// CliqueID: GPUs of one cluster and clique reach each other.
	CliqueID int
}

// PCIeRoot is the root complex, such as "pci0000:15"; empty if sysfs does not report.
func (g *GPU) PCIeRoot() string {
	if len(g.PCIePath) == 0 {
		return ""
	}
	return g.PCIePath[0]
}

// PCIeSwitch is the upstream port of the nearest PCIe switch above the GPU, such as "0000:16:00.0"; empty if the GPU is attached to
// a root port. Between a GPU and the upstream port of its switch lies the downstream port; above the upstream port there is at
// least a root port.
func (g *GPU) PCIeSwitch() string {
	const rootAndPorts = 4 // root complex, root port, upstream port, downstream port
	if len(g.PCIePath) <= rootAndPorts {
		return ""
	}
	return g.PCIePath[len(g.PCIePath)-3]
}

// NVLinkGroups returns, by address, the group of each GPU with active NVLinks. The GPUs of a group reach each other over NVLink,
// directly or via others, through NVSwitches, or in one clique of a fabric. A group is named after the device of its first GPU.
func NVLinkGroups(gpus []GPU) map[PCIAddress]string {
	first := make([]int, len(gpus)) // by GPU, the first known GPU of its group
	for i := range gpus {
		first[i] = i
		for j := range i {
			if first[i] != first[j] && gpus[i].linkedTo(&gpus[j]) {
				from, to := max(first[i], first[j]), min(first[i], first[j])
				for k := range i + 1 {
					if first[k] == from {
						first[k] = to
					}
				}
			}
		}
	}
	groups := map[PCIAddress]string{}
	for i := range gpus {
		if gpus[i].linked() {
			groups[gpus[i].PCI] = gpus[first[i]].PCI.DeviceName()
		}
	}
	return groups
}

// linked reports whether the GPU has NVLinks that are up.
func (g *GPU) linked() bool { return g.NVLinks != nil && g.NVLinks.Active > 0 }

// linkedTo reports whether NVLinks, or a fabric of them, connect two GPUs. Switches of a fabric connect only those of one clique.
func (g *GPU) linkedTo(other *GPU) bool {
	if !g.linked() || !other.linked() {
		return false
	}
	leadsTo := func(a, b *GPU) bool {
		return slices.ContainsFunc(a.NVLinks.Peers, func(p NVLinkPeer) bool { return p.PCI == b.PCI })
	}
	if g.Fabric != nil && other.Fabric != nil {
		return *g.Fabric == *other.Fabric || leadsTo(g, other) || leadsTo(other, g)
	}
	bySwitch := g.NVLinks.Switched && other.NVLinks.Switched && g.Fabric == nil && other.Fabric == nil
	return bySwitch || leadsTo(g, other) || leadsTo(other, g)
}
