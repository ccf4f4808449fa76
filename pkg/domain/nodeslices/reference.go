// SPDX-License-Identifier: Apache-2.0

package nodeslices

// Entry documents a name in slices.
type Entry struct {
	Name string
	// Type of the value, as the resource API calls it; empty for taints.
	Type string
	// On says which devices have it: "all", or values of the attribute type.
	On string
	// Text says what it is and where it comes from.
	Text string
}

// byPolicy is On for attributes that partitions have only by policy. Statements about mig also apply to shared partitions.
const byPolicy = "gpu, timeslice, mps; mig by policy"

// Devices that are shared.
const (
	sharedAny = "timeslice, mps, mig-timeslice, mig-mps"
	sharedMPS = "mps, mig-mps"
)

// Attributes documents every attribute of every device, sorted by name. Those without a domain are in the driver's:
// device.attributes["gpu.cleave.dev"].uuid.
func Attributes() []Entry {
	return []Entry{
		{"addressingMode", "string", byPolicy, "HMM, ATS or None (nvmlDeviceGetAddressingMode)"},
		{"architecture", "string", "all", "such as Hopper (nvmlDeviceGetArchitecture)"},
		{"brand", "string", byPolicy, "such as Nvidia (nvmlDeviceGetBrand)"},
		{"cpuAffinity", "string", byPolicy, "CPUs near the GPU, such as 0-55,112-167 (sysfs local_cpulist); left out if longer than 64 bytes"},
		{"cudaComputeCapability", "version", "all", "such as 9.0.0 (nvmlDeviceGetCudaComputeCapability)"},
		{"cudaDriverVersion", "version", byPolicy, "newest CUDA version that the driver serves, such as 13.0.0 (nvmlSystemGetCudaDriverVersion)"},
		{"dra.net/numaNode", "int", "mig by policy; all others by policy",
			"as resource.kubernetes.io/numaNode, for drivers of CPUs and network cards that have no other name yet"},
		{"driverVersion", "version", "all", "such as 580.95.5 (nvmlSystemGetDriverVersion); leading zeros are dropped"},
		{"eccEnabled", "bool", byPolicy, "whether memory errors are corrected (nvmlDeviceGetEccMode)"},
		{"fabricCliqueID", "int", "gpu, timeslice, mps",
			"GPUs of one cluster and clique reach each other by NVLink, also from node to node (nvmlDeviceGetGpuFabricInfoV)"},
		{"fabricClusterUUID", "string", "gpu, timeslice, mps", "NVLink domain of several nodes (nvmlDeviceGetGpuFabricInfoV)"},
		{"giProfileID", "int", "mig by policy", "profile ID of the GPU instance; unlike profile it does not change with the driver"},
		{"index", "int", byPolicy, "NVML index; it may change with a reboot"},
		{"memoryEnforcement", "string", "gpu, " + sharedAny + "; mig by policy",
			"what holds a claim to its memory: none, process (MPS) or cgroup"},
		{"migCapable", "bool", byPolicy, "whether the board can be partitioned"},
		{"minor", "int", byPolicy, "N of /dev/nvidiaN; it may change with a reboot"},
		{"nvlinkBandwidthMBps", "int", "gpu, timeslice, mps",
			"what the GPU's NVLinks that are up move in one direction, together, in megabytes a second"},
		{"nvlinkCount", "int", "gpu, timeslice, mps", "NVLinks that are up (nvmlDeviceGetNvLinkState)"},
		{"nvlinkGroup", "string", "gpu, timeslice, mps",
			"GPUs of the node that reach each other by NVLink have the same: the device name of the first of them"},
		{"nvlinkVersion", "version", "gpu, timeslice, mps", "such as 4.0.0 (nvmlDeviceGetNvLinkVersion)"},
		{"parentUUID", "string", "mig", "UUID of the GPU that the partition is of"},
		{"pcieSwitch", "string", byPolicy, "PCI address of the nearest PCIe switch above the GPU; left out where there is none"},
		{"placementSize", "int", "mig", "placement units of the partition"},
		{"placementStart", "int", "mig by policy", "first placement unit of the partition"},
		{"productName", "string", "all", "such as NVIDIA H100 80GB HBM3 (nvmlDeviceGetName)"},
		{"profile", "string", "mig", "such as 1g.10gb; the memory in it may change with the driver"},
		{"resource.kubernetes.io/numaNode", "int", "all", "NUMA node near the GPU (sysfs numa_node)"},
		{"resource.kubernetes.io/pciBusID", "string", byPolicy, "PCI address, such as 0000:1b:00.0"},
		{"resource.kubernetes.io/pcieRoot", "string", "all", "PCIe root complex, such as pci0000:15"},
		{"sharePlacement", "string", "all shared ones by policy", "spread: the device with the fewest claims is published first"},
		{"shares", "int", sharedAny, "how many claims have the GPU or partition at once"},
		{"type", "string", "all",
			"gpu (whole, exclusive), mig (partition), timeslice or mps (shared), mig-timeslice or mig-mps (shared partition)"},
		{"uuid", "string", "gpu, timeslice, mps; mig where the partition is there already", "of the GPU or MIG device"},
	}
}

// Capacities documents every capacity, sorted by name.
func Capacities() []Entry {
	return []Entry{
		{"copyEngines", "count", "mig", "copy engines of the partition"},
		{"cores", "percent", sharedMPS, "of the multiprocessors of the GPU or partition; claims take parts of it"},
		{"decoders", "count", "mig", "NVDEC engines"},
		{"encoders", "count", "mig", "NVENC engines"},
		{"jpegEngines", "count", "mig", "NVJPG engines"},
		{"memory", "bytes", "all", "what workloads can use: the total less what the driver reserves; of shared devices claims take parts"},
		{"multiprocessors", "count", "mig", "SMs of the partition"},
		{"ofaEngines", "count", "mig", "optical flow engines"},
		{"shares", "count", sharedAny, "claims take one each unless they ask for more"},
	}
}
