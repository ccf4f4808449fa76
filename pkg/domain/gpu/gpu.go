// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"slices"
	"strconv"
)

// Version is a two-part version: a CUDA compute capability ("9.0") or a CUDA version ("13.0").
type Version struct {
	Major, Minor int
}

// String gives "major.minor".
func (v Version) String() string {
	return strconv.Itoa(v.Major) + "." + strconv.Itoa(v.Minor)
}

// Node is the result of reading a node's hardware.
type Node struct {
	// DriverVersion as NVML words it, such as "580.95.05" (nvmlSystemGetDriverVersion).
	DriverVersion string
	// CUDAVersion is the newest CUDA version the driver supports (nvmlSystemGetCudaDriverVersion_v2).
	CUDAVersion Version
	// GPUs in order of PCI address, which outlives reboots and driver reloads; NVML indexes and minors do not.
	GPUs []GPU
	// ConfidentialComputing reports that the GPUs run in confidential computing mode (nvmlSystemGetConfComputeState), or as several GPUs with
	// protected PCIe (nvmlSystemGetConfComputeSettings). That is the case only inside a confidential virtual machine, and for all GPUs.
	ConfidentialComputing bool
	// Problems are the GPUs that could not be read. They are left out of GPUs; the rest of the node is served.
	Problems []Problem
}

// Problem is the reason why a GPU is not served.
type Problem struct {
	// Index is the GPU's NVML index.
	Index int
	Err   error
}

// GPU is one physical GPU. Nil pointers and empty strings stand for values that the board or the driver does not report: these are
// never guessed, but left out of all publications.
type GPU struct {
	PCI   PCIAddress
	UUID  string // nvmlDeviceGetUUID, "GPU-…"
	Index int    // NVML index at discovery; changes across reboots
	Minor int    // N of /dev/nvidiaN; changes across reboots

	ProductName       string
	Brand             string
	Architecture      string
	ComputeCapability *Version
	// Memory is the memory available to workloads, in bytes: the total less the driver's reservation (nvmlDeviceGetMemoryInfo_v2),
	// or the total if the driver does not report that. nil on boards that report none.
	Memory *uint64
	// TotalMemory is the board's memory in bytes, as nvidia-smi shows it (nvmlDeviceGetMemoryInfo_v2, total).
	TotalMemory    *uint64
	ECC            *bool
	AddressingMode string // "HMM", "ATS" or "None" (nvmlDeviceGetAddressingMode)

	// PCIDeviceID is the PCI device ID and the vendor's, joined as 0x233010de (nvmlDeviceGetPciInfo_v3); 0 if unknown.
	PCIDeviceID uint32
	// PCISubsystemID is that of the subsystem in the same form, which tells boards with one GPU apart; 0 if unknown.
	PCISubsystemID uint32

	NVLinks *NVLinks // nil if the board has none
	Fabric  *Fabric  // nil if the GPU belongs to no NVLink domain of several nodes
	// FabricState is the state of the GPU's registration with its NVLink fabric; FabricUnsupported if it needs none.
	FabricState FabricState

	NUMANode *int // sysfs numa_node; nil for -1 and where sysfs does not report
	// NearNUMANodes are the other NUMA nodes of the same socket at the least distance, ascending; most sockets have none.
	NearNUMANodes []int
	// PCIePath is the path from the root complex to the GPU in sysfs, such as "pci0000:15", "0000:15:01.0", "0000:16:00.0",
	// "0000:17:03.0", "0000:1b:00.0"; empty if sysfs does not report.
	PCIePath []string
	// CPUAffinity are the CPUs near the GPU as sysfs lists them (local_cpulist), such as "0-55,112-167".
	CPUAffinity string

	// Virtualization is how the GPU is made available to a virtual machine.
	Virtualization Virtualization

	MIG MIG
}

// Virtualization is NVML_GPU_VIRTUALIZATION_MODE_*, limited to the modes of served GPUs.
type Virtualization int

// GPUs of hosts have none. PassThrough: the guest has the physical GPU. VGPU: it has a part defined by the host.
const (
	NoVirtualization Virtualization = iota
	PassThrough
	VGPU
)

// MIG is a GPU's MIG mode and possible partitions.
type MIG struct {
	Capable bool
	// NeedsReset reports that the mode changes only with a reset of the GPU, as on Ampere; from Hopper on, it changes at once
	// (NVIDIA MIG user guide, "Enable MIG Mode").
	NeedsReset bool
	// Fixed reports that mode and partitions cannot be changed: in the guest of a vGPU they are the host's.
	Fixed bool
	// Enabled is the current mode, Pending the mode after the next reset (nvmlDeviceGetMigMode).
	Enabled, Pending bool
	// Profiles in order of SortProfiles; empty if the geometry is unknown.
	Profiles []Profile
	// Slices is the number of placement units of the board: 4, 8 or 12. Zero if the geometry is unknown.
	Slices int
}

// SameGPUs reports whether two inventories have the same GPUs and problems. While a GPU cannot be read, the inventory is reread and
// is a new value each time.
func (n *Node) SameGPUs(other *Node) bool {
	return n == other || slices.EqualFunc(n.GPUs, other.GPUs, func(a, b GPU) bool {
		return a.PCI == b.PCI && a.UUID == b.UUID && a.Minor == b.Minor && a.MIG.SameMode(b.MIG)
	}) && slices.EqualFunc(n.Problems, other.Problems, func(a, b Problem) bool { return a.Err.Error() == b.Err.Error() })
}

// SameMode reports whether two reads agree on whether the mode needs a reset and, if so, on the mode.
func (m MIG) SameMode(n MIG) bool {
	return m.NeedsReset == n.NeedsReset && (m.Enabled == n.Enabled || !m.NeedsReset)
}

// ProfileName is the name of a profile for people, or its ID where it has none.
func (m *MIG) ProfileName(id int) string {
	if p := m.Profile(id); p != nil && p.Name != "" {
		return p.Name
	}
	return "profile " + strconv.Itoa(id)
}

// SortGPUs puts GPUs in order of PCI address, in place.
func SortGPUs(gpus []GPU) {
	slices.SortFunc(gpus, func(a, b GPU) int { return a.PCI.Compare(b.PCI) })
}

// Find returns the GPU whose whole-GPU device has the given name, or nil.
func (n *Node) Find(device string) *GPU {
	for i := range n.GPUs {
		if n.GPUs[i].PCI.DeviceName() == device {
			return &n.GPUs[i]
		}
	}
	return nil
}

// Placement is the position of a partition on its board, in placement units (nvmlGpuInstancePlacement_t).
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// Overlaps reports whether the two placements share a unit.
func (p Placement) Overlaps(q Placement) bool {
	return p.Start < q.Start+q.Size && q.Start < p.Start+p.Size
}

// Profile is a possible size of a GPU instance (nvmlGpuInstanceProfileInfo_t).
type Profile struct {
	// ID is the argument of every call but one, and part of device names. It is not the NVML enum.
	ID int
	// Enum is NVML_GPU_INSTANCE_PROFILE_*, which only nvmlDeviceGetGpuInstanceProfileInfo takes.
	Enum int
	// Name for people, such as "1g.10gb+me". It depends on the driver's accounting of memory and may change with the driver.
	Name string
	// MaxInstances is the number of instances that fit on an empty board.
	MaxInstances int
	// ComputeSlices as in the "1g" of the name.
	ComputeSlices   int
	Memory          uint64 // bytes
	Multiprocessors int
	CopyEngines     int
	Decoders        int
	Encoders        int
	JPEGEngines     int
	OFAEngines      int
	// Placements in ascending start.
	Placements []Placement
}

// SortProfiles puts profiles in ascending order of size, then of profile ID, in place.
func SortProfiles(profiles []Profile) {
	slices.SortFunc(profiles, func(a, b Profile) int {
		return cmp.Or(cmp.Compare(a.size(), b.size()), cmp.Compare(a.ComputeSlices, b.ComputeSlices), cmp.Compare(a.ID, b.ID))
	})
}

// size is the number of placement units the profile takes; 0 if it has no placement.
func (p Profile) size() int {
	if len(p.Placements) == 0 {
		return 0
	}
	return p.Placements[0].Size
}

// Partition is an existing GPU instance, with the compute instance that fills it.
type Partition struct {
	ProfileID int       `json:"profileID"`
	Placement Placement `json:"placement"`
	// GI is the GPU instance's ID, unique on its GPU while it exists (nvmlGpuInstanceInfo_t).
	GI int `json:"gi"`
	// CI is the compute instance's ID, nil while there is none.
	CI *int `json:"ci,omitempty"`
	// UUID of the MIG device, "MIG-…"; empty while there is no compute instance.
	UUID string `json:"uuid,omitempty"`
	// Existing partitions are unmanaged: others created them. They are offered unchanged and never destroyed.
	Existing bool `json:"existing,omitempty"`
}
