package gpu

// NVLinks are the links of a GPU to others.
type NVLinks struct {
	// Active is how many links are up (nvmlDeviceGetNvLinkState).
	Active int
	// Version of the links that are up (nvmlDeviceGetNvLinkVersion), such as 4.0; zero if unknown.
	Version Version
	// MBps is what the links that are up move in one direction, together, in megabytes a second
	// (NVML_FI_DEV_NVLINK_GET_SPEED); 0 if unknown.
	MBps int64
	// Switched tells that the links lead to NVSwitches, by which the GPU reaches every other one that is linked so.
	Switched bool
	// Peers are the GPUs at the other end of direct links, in order of address.
	Peers []NVLinkPeer
}

// NVLinkPeer is a GPU at the other end of links.
type NVLinkPeer struct {
	PCI   PCIAddress
	Links int
}

// Fabric is an NVLink domain of several nodes (nvmlDeviceGetGpuFabricInfoV).
type Fabric struct {
	// ClusterUUID in the usual form of a UUID.
	ClusterUUID string
	// CliqueID: GPUs of one cluster and clique reach each other.
	CliqueID int
}

// PCIeRoot is the root complex, such as "pci0000:15"; empty where sysfs does not tell.
func (g *GPU) PCIeRoot() string {
	if len(g.PCIePath) == 0 {
		return ""
	}
	return g.PCIePath[0]
}
