// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/hex"
	"slices"
	"strings"
)

// NVML_NVLINK_DEVICE_TYPE_*: the device at the other end of a link.
const (
	LinkToGPU     = 0
	LinkToSwitch  = 2
	LinkToUnknown = 0xff
)

// NVML_TOPOLOGY_*: the common ancestor of two GPUs.
const (
	TopologyInternal   = 0
	TopologySingle     = 10 // one PCIe switch
	TopologyMultiple   = 20 // several PCIe switches
	TopologyHostBridge = 30 // one root complex
	TopologyNode       = 40 // one NUMA node
	TopologySystem     = 50
)

// NVML_P2P_CAPS_INDEX_* and NVML_P2P_STATUS_*.
const (
	P2PRead    = 0
	P2PWrite   = 1
	P2PNVLink  = 2
	P2PAtomics = 3
	P2PPCI     = 4

	P2PStatusOK                  = 0
	P2PStatusChipsetNotSupported = 1
	P2PStatusGPUNotSupported     = 2
	P2PStatusNotSupported        = 5
)

// Links are the connections of a GPU: NVLinks, PCI and CPUs.
type Links struct{ *access }

// link starts a call about an NVLink and checks its number.
func (d Links) link(call string, link int) error {
	if err := d.node.enter(call, d.index); err != nil {
		return err
	}
	switch {
	case d.board.NVLink == nil:
		return fail(call, CodeNotSupported, "%s has no NVLink", d.board.Product)
	case link < 0 || link >= d.board.NVLink.Links:
		return fail(call, CodeInvalidArgument, "%s has links 0 to %d, not %d", d.board.Product, d.board.NVLink.Links-1, link)
	default:
		return nil
	}
}

// peers are the directly linked GPUs, ascending.
func (d *access) peers() []int {
	for _, group := range d.node.spec.Links.Groups {
		if slices.Contains(group, d.index) {
			return slices.DeleteFunc(slices.Clone(group), func(i int) bool { return i == d.index })
		}
	}
	return nil
}

// linked reports whether the NVLinks of the GPU are up.
func (d *access) linked() bool {
	if d.board.NVLink == nil {
		return false
	}
	if st, err := d.node.state.load(); err != nil || slices.Contains(st.LinksDown, d.index) {
		return false
	}
	switch d.node.spec.Links.Kind {
	case "switch", "fabric":
		return true
	default:
		return len(d.peers()) > 0
	}
}

// NVLinkState reports whether a link is up (nvmlDeviceGetNvLinkState).
func (d Links) NVLinkState(link int) (bool, error) {
	if err := d.link("nvmlDeviceGetNvLinkState", link); err != nil {
		return false, err
	}
	return d.linked(), nil
}

// NVLinkVersion is one of NVML_NVLINK_VERSION_* (nvmlDeviceGetNvLinkVersion).
func (d Links) NVLinkVersion(link int) (int, error) {
	if err := d.link("nvmlDeviceGetNvLinkVersion", link); err != nil {
		return 0, err
	}
	return d.board.NVLink.Version, nil
}

// NVLinkRemoteDeviceType is one of LinkTo* (nvmlDeviceGetNvLinkRemoteDeviceType).
func (d Links) NVLinkRemoteDeviceType(link int) (int, error) {
	if err := d.link("nvmlDeviceGetNvLinkRemoteDeviceType", link); err != nil {
		return 0, err
	}
	switch {
	case !d.linked():
		return LinkToUnknown, nil
	case d.node.spec.Links.Kind == "groups":
		return LinkToGPU, nil
	default:
		return LinkToSwitch, nil
	}
}

// NVLinkRemotePCI is the GPU or NVSwitch at the other end (nvmlDeviceGetNvLinkRemotePciInfo_v2). Switches outside the node have no
// address on its buses, so theirs is zero.
func (d Links) NVLinkRemotePCI(link int) (PCIInfo, error) {
	const call = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
	if err := d.link(call, link); err != nil {
		return PCIInfo{}, err
	}
	s := d.node.spec
	switch peers := d.peers(); {
	case !d.linked():
		return PCIInfo{}, fail(call, CodeNotSupported, "link %d of GPU %d is down", link, d.index)
	case s.Links.Kind == "switch" && len(s.NVSwitches) > 0:
		return pciInfo(&s.NVSwitches[link%len(s.NVSwitches)], nil), nil
	case s.Links.Kind == "groups":
		peer := d.node.devices[peers[link*len(peers)/d.board.NVLink.Links]]
		return pciInfo(&peer.spec.pciEntry, peer.board), nil
	default:
		return PCIInfo{BusID: "00000000:00:00.0"}, nil
	}
}

// TopologyCommonAncestor is one of Topology* (nvmlDeviceGetTopologyCommonAncestor).
func (d Links) TopologyCommonAncestor(other *Device) (int, error) {
	if err := d.node.enter("nvmlDeviceGetTopologyCommonAncestor", d.index); err != nil {
		return 0, err
	}
	return d.topology(other), nil
}

// topology derives it from the paths in the PCI tree.
func (d Links) topology(other *Device) int {
	if d.index == other.index {
		return TopologyInternal
	}
	a, b := strings.Split(d.spec.Path, "/"), strings.Split(other.spec.Path, "/")
	common := 0
	for common < min(len(a), len(b)) && a[common] == b[common] {
		common++
	}
	switch {
	case common == 0 && d.spec.NUMA >= 0 && d.spec.NUMA == other.spec.NUMA:
		return TopologyNode
	case common == 0:
		return TopologySystem
	case common == 1:
		return TopologyHostBridge
	case len(a)-common == 2 && len(b)-common == 2: // a port of the same switch each
		return TopologySingle
	default:
		return TopologyMultiple
	}
}

// TopologyNearestGPUs lists the GPUs at exactly that level, by index (nvmlDeviceGetTopologyNearestGpus).
func (d Links) TopologyNearestGPUs(level int) ([]*Device, error) {
	if err := d.node.enter("nvmlDeviceGetTopologyNearestGpus", d.index); err != nil {
		return nil, err
	}
	var near []*Device
	for _, other := range d.node.devices {
		if other.index != d.index && d.topology(other) == level {
			near = append(near, other)
		}
	}
	return near, nil
}

// P2PStatus is one of P2PStatus* for one of P2PRead … P2PPCI (nvmlDeviceGetP2PStatus). GPUs in MIG mode have no peers.
func (d Links) P2PStatus(other *Device, capability int) (int, error) {
	const call = "nvmlDeviceGetP2PStatus"
	mine, err := d.load(call)
	if err != nil {
		return 0, err
	}
	theirs, err := d.node.gpus[other.index].load()
	if err != nil {
		return 0, fail(call, CodeUnknown, "%v", err)
	}
	switch {
	case capability < P2PRead || capability > P2PPCI:
		return 0, fail(call, CodeInvalidArgument, "peer-to-peer capability %d", capability)
	case mine.MIG || theirs.MIG:
		return P2PStatusGPUNotSupported, nil
	}
	kind := d.node.spec.Links.Kind
	joined := d.linked() && other.linked() && d.index != other.index &&
		(kind == "switch" || kind == "fabric" || slices.Contains(d.peers(), other.index))
	near := d.topology(other) <= TopologyNode
	switch {
	case capability == P2PNVLink && joined, capability == P2PPCI && near, capability < P2PNVLink && (joined || near),
		capability == P2PAtomics && joined:
		return P2PStatusOK, nil
	case capability == P2PPCI || capability < P2PNVLink:
		return P2PStatusChipsetNotSupported, nil
	default:
		return P2PStatusNotSupported, nil
	}
}

// NVML_GPU_FABRIC_STATE_*.
const (
	FabricNotStarted = 1
	FabricInProgress = 2
	FabricCompleted  = 3
	// Not NVML's: completed with an error, and with a health mask of unhealthy routes.
	FabricFailed         = 4
	FabricRouteUnhealthy = 5
)

// FabricStates lists the names of Fabric*, the first for the node model's.
func FabricStates() []string { return fabricStates }

var fabricStates = []string{"model", "not-started", "in-progress", "completed", "failed", "route-unhealthy"}

// FabricStateName names one of Fabric*.
func FabricStateName(state int) string { return nameOf(fabricStates, state) }

// FabricInfo is the GPU's place in an NVLink domain (nvmlGpuFabricInfoV_t). The rest is meaningless until the state is
// FabricCompleted.
type FabricInfo struct {
	State       int
	ClusterUUID [16]byte
	Clique      uint32
	// Status is an NVML return code, HealthMask is NVML_GPU_FABRIC_HEALTH_MASK_*.
	Status     int
	HealthMask uint32
}

// routeUnhealthy is NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE at its place.
const routeUnhealthy = 1 << 4

// Fabric is the NVLink domain (nvmlDeviceGetGpuFabricInfoV); ErrNotSupported without one.
func (d Links) Fabric() (FabricInfo, error) {
	const call = "nvmlDeviceGetGpuFabricInfoV"
	st, err := d.load(call)
	if err != nil {
		return FabricInfo{}, err
	}
	f := d.node.spec.Fabric
	switch st.FabricState {
	case 0:
	case FabricFailed:
		return FabricInfo{State: FabricCompleted, Status: int(CodeUnknown)}, d.fabricLook(call, st)
	case FabricRouteUnhealthy:
		return FabricInfo{State: FabricCompleted, HealthMask: routeUnhealthy}, d.fabricLook(call, st)
	default:
		return FabricInfo{State: st.FabricState}, d.fabricLook(call, st)
	}
	if f == nil {
		return FabricInfo{}, fail(call, CodeNotSupported, "%s belongs to no NVLink domain", d)
	}
	info := FabricInfo{State: FabricCompleted, Clique: uint32(f.Clique)}
	if _, err := hex.Decode(info.ClusterUUID[:], []byte(strings.ReplaceAll(f.ClusterUUID, "-", ""))); err != nil {
		return FabricInfo{}, fail(call, CodeUnknown, "cluster UUID %q: %v", f.ClusterUUID, err)
	}
	return info, nil
}

// fabricLook counts a query of a registration that will complete.
func (d Links) fabricLook(call string, st *gpuState) error {
	if st.FabricLooks == 0 {
		return nil
	}
	return d.change(call, func(st *gpuState) error {
		if st.FabricLooks--; st.FabricLooks <= 0 {
			st.FabricState, st.FabricLooks = 0, 0
		}
		return nil
	})
}

// NUMANodeID is the NUMA node of the GPU's own memory (nvmlDeviceGetNumaNodeId): only if CPU and GPU share an address space. The
// NUMA node near the GPU is MemoryAffinity.
func (d Links) NUMANodeID() (int, error) {
	const call = "nvmlDeviceGetNumaNodeId"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	if d.board.AddressingMode != 2 {
		return 0, fail(call, CodeNotSupported, "the memory of %s is no NUMA node", d)
	}
	return 2 + 8*d.index, nil
}

// MemoryAffinity is the NUMA node near the GPU (nvmlDeviceGetMemoryAffinity).
func (d Links) MemoryAffinity() (int, error) {
	const call = "nvmlDeviceGetMemoryAffinity"
	if err := d.node.enter(call, d.index); err != nil {
		return 0, err
	}
	if d.spec.NUMA < 0 {
		return 0, fail(call, CodeNotSupported, "the platform names no NUMA node for %s", d)
	}
	return d.spec.NUMA, nil
}

// CPUAffinity are the CPUs near the GPU, in ascending order (nvmlDeviceGetCpuAffinity).
func (d Links) CPUAffinity() ([]CPURange, error) {
	if err := d.node.enter("nvmlDeviceGetCpuAffinity", d.index); err != nil {
		return nil, err
	}
	return d.node.spec.cpusOf(d.spec.NUMA), nil
}
