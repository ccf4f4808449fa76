// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Library is the part of libnvidia-ml.so.1 that Cleave uses: one method per NVML function, with NVML's numbers.
// It has two implementations: the real library through go-nvml, and the engine of a simulated node in process.
// Errors wrap the sentinels of pkg/domain/gpu.
type Library interface {
	Init() error                           // nvmlInit_v2
	Shutdown() error                       // nvmlShutdown
	SystemDriverVersion() (string, error)  // nvmlSystemGetDriverVersion
	SystemCUDADriverVersion() (int, error) // nvmlSystemGetCudaDriverVersion_v2: 1000*major + 10*minor
	// ConfidentialComputing reports whether the GPUs run in confidential computing mode (nvmlSystemGetConfComputeState: ccFeature), or in
	// that of several GPUs and NVSwitches, protected PCIe, where ccFeature is off (nvmlSystemGetConfComputeSettings: multiGpuMode;
	// open-gpu-kernel-modules 595.45.04, conf_compute_api.c, SystemGetCapabilities, and nv_gpu_ops.c, which treats both alike).
	ConfidentialComputing() (bool, error)
	// AcceptsWork reports whether GPUs in confidential computing mode accept work (nvmlSystemGetConfComputeGpusReadyState).
	AcceptsWork() (bool, error)
	DeviceCount() (int, error)               // nvmlDeviceGetCount_v2
	DeviceByIndex(index int) (Device, error) // nvmlDeviceGetHandleByIndex_v2
	// DeviceByPCI opens the GPU at an address and no other (nvmlDeviceGetHandleByPciBusId_v2).
	DeviceByPCI(pci gpu.PCIAddress) (Device, error)
	// HasFunction reports whether the library exports a function; go-nvml aborts the process if a missing one is called.
	HasFunction(name string) bool
	EventSet() (EventSet, error) // nvmlEventSetCreate
}

// EventSet is an nvmlEventSet_t.
type EventSet interface {
	// Wait returns the next event, if one arrives within the timeout (nvmlEventSetWait_v2).
	Wait(timeout time.Duration) (data EventData, happened bool, err error)
	Free() error // nvmlEventSetFree
}

// EventData is nvmlEventData_t.
type EventData struct {
	Handle any    // of the GPU, see Device.Handle
	Type   uint64 // one bit of nvmlEventType*
	Data   uint64 // the XID of nvmlEventTypeXidCriticalError
	// GPUInstance and ComputeInstance are 0xFFFFFFFF if the event concerns the whole GPU.
	GPUInstance, ComputeInstance uint32
}

// Device is a handle to one physical GPU.
type Device interface {
	Links() Links
	MIG() MIG
	Use() Use

	Handle() any                                              // nvmlDevice_t: equal for the same GPU; only for comparison
	UUID() (string, error)                                    // nvmlDeviceGetUUID
	MinorNumber() (int, error)                                // nvmlDeviceGetMinorNumber
	PCIInfo() (PCIInfo, error)                                // nvmlDeviceGetPciInfo_v3
	Name() (string, error)                                    // nvmlDeviceGetName
	Brand() (int, error)                                      // nvmlDeviceGetBrand: NVML_BRAND_*
	Architecture() (int, error)                               // nvmlDeviceGetArchitecture: NVML_DEVICE_ARCH_*
	CUDAComputeCapability() (major, minor int, err error)     // nvmlDeviceGetCudaComputeCapability
	MemoryTotal() (uint64, error)                             // nvmlDeviceGetMemoryInfo: total, bytes
	MemoryTotalReserved() (total, reserved uint64, err error) // nvmlDeviceGetMemoryInfo_v2, bytes
	ECCMode() (current, pending bool, err error)              // nvmlDeviceGetEccMode
	AddressingMode() (int, error)                             // nvmlDeviceGetAddressingMode: NVML_DEVICE_ADDRESSING_MODE_*
	FieldValues(fields []Field) ([]FieldValue, error)         // nvmlDeviceGetFieldValues, in order of fields
	VirtualizationMode() (int, error)                         // nvmlDeviceGetVirtualizationMode: NVML_GPU_VIRTUALIZATION_MODE_*
	Temperature() error                                       // nvmlDeviceGetTemperature, for its error only
	// RunningProcesses lists distinct process IDs in ascending order: nvmlDeviceGetComputeRunningProcesses_v3 and
	// nvmlDeviceGetGraphicsRunningProcesses_v3.
	RunningProcesses() ([]int, error)

	SupportedEventTypes() (uint64, error)            // nvmlDeviceGetSupportedEventTypes: a mask of nvmlEventType*
	RegisterEvents(types uint64, set EventSet) error // nvmlDeviceRegisterEvents, with a set of the same library

	ComputeMode() (int, error)     // nvmlDeviceGetComputeMode: NVML_COMPUTEMODE_*
	SetComputeMode(mode int) error // nvmlDeviceSetComputeMode

	MemoryLimits(cgroup string) (soft, hard, used uint64, err error) // nvmlDeviceGetMemoryLimits_v1, bytes; ErrNotFound if none is set
	SetMemoryLimits(cgroup string, soft, hard uint64) error          // nvmlDeviceSetMemoryLimits_v1, bytes
}

// Links are the NVLinks of a GPU.
type Links interface {
	NVLinkState(link int) (bool, error)            // nvmlDeviceGetNvLinkState; ErrInvalidArgument past the last link
	NVLinkVersion(link int) (int, error)           // nvmlDeviceGetNvLinkVersion: NVML_NVLINK_VERSION_*
	NVLinkRemoteDeviceType(link int) (int, error)  // nvmlDeviceGetNvLinkRemoteDeviceType: NVML_NVLINK_DEVICE_TYPE_*
	NVLinkRemotePCIInfo(link int) (PCIInfo, error) // nvmlDeviceGetNvLinkRemotePciInfo_v2
	FabricInfo() (FabricInfo, error)               // nvmlDeviceGetGpuFabricInfoV
}

// MIG is the MIG mode of a GPU and its partitions.
type MIG interface {
	MIGMode() (current, pending bool, err error)    // nvmlDeviceGetMigMode
	SetMIGMode(enable bool) (activation, err error) // nvmlDeviceSetMigMode: check both results
	// nvmlDeviceGetGpuInstanceProfileInfo; Placements and Name stay empty
	GPUInstanceProfileInfo(enum int) (gpu.Profile, error)
	GPUInstancePossiblePlacements(profileID int) ([]gpu.Placement, error)                // nvmlDeviceGetGpuInstancePossiblePlacements_v2
	CreateGPUInstanceWithPlacement(profileID int, at gpu.Placement) (GPUInstance, error) // nvmlDeviceCreateGpuInstanceWithPlacement
	GPUInstances(profileID int) ([]GPUInstance, error)                                   // nvmlDeviceGetGpuInstances
	GPUInstanceByID(id int) (GPUInstance, error)                                         // nvmlDeviceGetGpuInstanceById
}

// PCIInfo is the part of nvmlPciInfo_t that Cleave uses.
type PCIInfo struct {
	BusID    string // with the eight-digit domain of NVML: "00000000:1B:00.0"
	DeviceID uint32 // the device ID in the upper 16 bits, the vendor's in the lower
	// SubsystemID is that of the subsystem, in the same form.
	SubsystemID uint32
}

// Field selects a value of nvmlDeviceGetFieldValues: NVML_FI_DEV_*, and for some fields a scope, such as the link.
type Field struct {
	ID, Scope int
}

// FieldValue is the value of a Field or the error of reading it.
type FieldValue struct {
	Value uint64
	Err   error
}

// FabricInfo is the part of nvmlGpuFabricInfoV_t that Cleave uses.
type FabricInfo struct {
	ClusterUUID [16]byte
	CliqueID    int
	State       int    // NVML_GPU_FABRIC_STATE_*
	Status      error  // of a completed registration; nil if it succeeded
	Health      uint32 // NVML_GPU_FABRIC_HEALTH_MASK_*
}

// GPUInstance is a handle to a GPU instance.
type GPUInstance interface {
	Info() (GPUInstanceInfo, error)                               // nvmlGpuInstanceGetInfo
	ComputeInstanceProfileID(enum int) (int, error)               // nvmlGpuInstanceGetComputeInstanceProfileInfo: id
	CreateComputeInstance(profileID int) (ComputeInstance, error) // nvmlGpuInstanceCreateComputeInstance
	ComputeInstances(profileID int) ([]ComputeInstance, error)    // nvmlGpuInstanceGetComputeInstances
	ComputeInstanceByID(id int) (ComputeInstance, error)          // nvmlGpuInstanceGetComputeInstanceById
	Destroy() error                                               // nvmlGpuInstanceDestroy
}

// GPUInstanceInfo is nvmlGpuInstanceInfo_t.
type GPUInstanceInfo struct {
	ID, ProfileID int
	Placement     gpu.Placement
}

// ComputeInstance is a handle to a compute instance.
type ComputeInstance interface {
	// Info is nvmlComputeInstanceGetInfo_v2 and nvmlDeviceGetUUID of the MIG device.
	Info() (ComputeInstanceInfo, error)
	Destroy() error // nvmlComputeInstanceDestroy
}

// ComputeInstanceInfo is nvmlComputeInstanceInfo_t with the UUID of the instance's MIG device.
type ComputeInstanceInfo struct {
	ID   int
	UUID string // "MIG-…"
}
