// SPDX-License-Identifier: Apache-2.0

package gpu

import "strconv"

// Way is the kind of connection between two GPUs, in the terms of `nvidia-smi topo -m`.
type Way string

// The ways, the nearest first.
const (
	// SameGPU: both are the same GPU.
	SameGPU Way = "X"
	// ByNVLink: over a number of NVLinks, direct or through NVSwitches.
	ByNVLink Way = "NV"
	// BySwitch: over one PCIe bridge or switch.
	BySwitch Way = "PIX"
	// BySwitches: over several PCIe switches, but not over the root complex.
	BySwitches Way = "PXB"
	// ByRoot: over a PCIe root complex (host bridge), which is part of a CPU.
	ByRoot Way = "PHB"
	// ByNode: over several root complexes of one NUMA node.
	ByNode Way = "NODE"
	// BySystem: from one NUMA node to another.
	BySystem Way = "SYS"
	// UnknownWay: the platform does not report the GPUs' positions, as in many virtual machines.
	UnknownWay Way = "?"
)

// Connected is the closest connection between two GPUs.
type Connected struct {
	Way Way
	// Links is the number of NVLinks; zero for other ways.
	Links int
}

// String is the word of `nvidia-smi topo -m`, such as "NV18" or "PHB".
func (c Connected) String() string {
	if c.Links > 0 {
		return string(c.Way) + strconv.Itoa(c.Links)
	}
	return string(c.Way)
}

// Connection is how two GPUs of a node reach each other. It is the same in both directions.
func Connection(a, b *GPU) Connected {
	if a.PCI == b.PCI {
		return Connected{Way: SameGPU}
	}
	if links := linksBetween(a, b); links > 0 {
		return Connected{Way: ByNVLink, Links: links}
	}
	return Connected{Way: wayOverPCIe(a, b)}
}

// linksBetween is the number of NVLinks between two GPUs. If they report different numbers, as when a link has just gone down, it
// is the smaller one; a GPU whose links do not report their remote ends reports none.
func linksBetween(a, b *GPU) int {
	if !a.linked() || !b.linked() {
		return 0
	}
	there, back := a.NVLinks.to(b.PCI), b.NVLinks.to(a.PCI)
	switch {
	case there > 0 && back > 0:
		return min(there, back)
	case there > 0 || back > 0:
		return max(there, back)
	case a.linkedTo(b): // through switches: all links of each
		return min(a.NVLinks.Active, b.NVLinks.Active)
	default:
		return 0
	}
}

// to is the number of direct links to the GPU at an address.
func (l *NVLinks) to(pci PCIAddress) int {
	for _, p := range l.Peers {
		if p.PCI == pci {
			return p.Links
		}
	}
	return 0
}

// wayOverPCIe compares the ways from the root complexes to the GPUs. A switch is two bridges on each of them: its port
// towards the CPU, which is common, and its port towards the GPU.
func wayOverPCIe(a, b *GPU) Way {
	if len(a.PCIePath) > 0 && len(b.PCIePath) > 0 {
		common := 0
		for common < min(len(a.PCIePath), len(b.PCIePath)) && a.PCIePath[common] == b.PCIePath[common] {
			common++
		}
		const portAndGPU = 2
		switch {
		case common == 1:
			return ByRoot
		case common > 1 && max(len(a.PCIePath), len(b.PCIePath))-common <= portAndGPU:
			return BySwitch
		case common > 1:
			return BySwitches
		}
	}
	switch {
	case a.NUMANode == nil || b.NUMANode == nil:
		return UnknownWay
	case *a.NUMANode != *b.NUMANode:
		return BySystem
	case len(a.PCIePath) == 0 || len(b.PCIePath) == 0:
		return UnknownWay // same NUMA node, so anything up to ByNode
	default:
		return ByNode
	}
}
