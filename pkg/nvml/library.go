// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"time"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Library is what Cleave asks of libnvidia-ml.so.1: one method per NVML function, with the numbers NVML gives.
// Two implementations exist: the real library through go-nvml, and the engine of a simulated node in process.
// Errors wrap the sentinels of pkg/gpu.
type Library interface {
	Init() error                             // nvmlInit_v2
	Shutdown() error                         // nvmlShutdown
	SystemDriverVersion() (string, error)    // nvmlSystemGetDriverVersion
	SystemCUDADriverVersion() (int, error)   // nvmlSystemGetCudaDriverVersion_v2: 1000*major + 10*minor
	DeviceCount() (int, error)               // nvmlDeviceGetCount_v2
	DeviceByIndex(index int) (Device, error) // nvmlDeviceGetHandleByIndex_v2
	// HasFunction tells whether the library has a function; go-nvml ends the process when one is called that is missing.
	HasFunction(name string) bool
	EventSet() (EventSet, error) // nvmlEventSetCreate
}

// EventSet is an nvmlEventSet_t.
type EventSet interface {
	// Wait returns the next event, if one came within the timeout (nvmlEventSetWait_v2).
	Wait(timeout time.Duration) (data EventData, happened bool, err error)
	Free() error // nvmlEventSetFree
}

// EventData is nvmlEventData_t.
type EventData struct {
	Handle any    // of the GPU, see Device.Handle
	Type   uint64 // one bit of nvmlEventType*
	Data   uint64 // the XID of nvmlEventTypeXidCriticalError
	// GPUInstance and ComputeInstance are 0xFFFFFFFF where the event is about the whole GPU.
	GPUInstance, ComputeInstance uint32
}

// Device is a handle to one physical GPU.
type Device interface {
	Handle() any                                                          // nvmlDevice_t: the same for the same GPU; to compare, no more
	UUID() (string, error)                                                // nvmlDeviceGetUUID
	MinorNumber() (int, error)                                            // nvmlDeviceGetMinorNumber
	PCIInfo() (PCIInfo, error)                                            // nvmlDeviceGetPciInfo_v3
	Name() (string, error)                                                // nvmlDeviceGetName
	Brand() (int, error)                                                  // nvmlDeviceGetBrand: NVML_BRAND_*
	Architecture() (int, error)                                           // nvmlDeviceGetArchitecture: NVML_DEVICE_ARCH_*
	CUDAComputeCapability() (major, minor int, err error)                 // nvmlDeviceGetCudaComputeCapability
	MemoryTotal() (uint64, error)                                         // nvmlDeviceGetMemoryInfo: total, bytes
	MemoryTotalReserved() (total, reserved uint64, err error)             // nvmlDeviceGetMemoryInfo_v2, bytes
	ECCMode() (current, pending bool, err error)                          // nvmlDeviceGetEccMode
	AddressingMode() (int, error)                                         // nvmlDeviceGetAddressingMode: NVML_DEVICE_ADDRESSING_MODE_*
	FieldValues(fields []Field) ([]FieldValue, error)                     // nvmlDeviceGetFieldValues, in the order of the fields
	NVLinkState(link int) (bool, error)                                   // nvmlDeviceGetNvLinkState; ErrInvalidArgument past the last link
	NVLinkVersion(link int) (int, error)                                  // nvmlDeviceGetNvLinkVersion: NVML_NVLINK_VERSION_*
	NVLinkRemoteDeviceType(link int) (int, error)                         // nvmlDeviceGetNvLinkRemoteDeviceType: NVML_NVLINK_DEVICE_TYPE_*
	NVLinkRemotePCIInfo(link int) (PCIInfo, error)                        // nvmlDeviceGetNvLinkRemotePciInfo_v2
	FabricInfo() (FabricInfo, error)                                      // nvmlDeviceGetGpuFabricInfoV
	MIGMode() (current, pending bool, err error)                          // nvmlDeviceGetMigMode
	GPUInstanceProfileInfo(enum int) (gpu.Profile, error)                 // nvmlDeviceGetGpuInstanceProfileInfo; Placements and Name left empty
	GPUInstancePossiblePlacements(profileID int) ([]gpu.Placement, error) // nvmlDeviceGetGpuInstancePossiblePlacements_v2
	VirtualizationMode() (int, error)                                     // nvmlDeviceGetVirtualizationMode: NVML_GPU_VIRTUALIZATION_MODE_*
	Temperature() error                                                   // nvmlDeviceGetTemperature of the GPU, whatever it is
	RunningProcesses() ([]int, error)                                     // nvmlDeviceGetComputeRunningProcesses_v3 and nvmlDeviceGetGraphicsRunningProcesses_v3: process ids, ascending, once each

	SupportedEventTypes() (uint64, error)            // nvmlDeviceGetSupportedEventTypes: a mask of nvmlEventType*
	RegisterEvents(types uint64, set EventSet) error // nvmlDeviceRegisterEvents, with a set of the same library

	ComputeMode() (int, error)     // nvmlDeviceGetComputeMode: NVML_COMPUTEMODE_*
	SetComputeMode(mode int) error // nvmlDeviceSetComputeMode

	MemoryLimits(cgroup string) (soft, hard, used uint64, err error) // nvmlDeviceGetMemoryLimits_v1, bytes; ErrNotFound where none is set
	SetMemoryLimits(cgroup string, soft, hard uint64) error          // nvmlDeviceSetMemoryLimits_v1, bytes

	SetMIGMode(enable bool) (activation, err error)                                      // nvmlDeviceSetMigMode: both answers count
	CreateGPUInstanceWithPlacement(profileID int, at gpu.Placement) (GPUInstance, error) // nvmlDeviceCreateGpuInstanceWithPlacement
	GPUInstances(profileID int) ([]GPUInstance, error)                                   // nvmlDeviceGetGpuInstances
	GPUInstanceByID(id int) (GPUInstance, error)                                         // nvmlDeviceGetGpuInstanceById
}

// PCIInfo is what is used of nvmlPciInfo_t.
type PCIInfo struct {
	BusID    string // with the eight-digit domain of NVML: "00000000:1B:00.0"
	DeviceID uint32 // the device ID in the upper 16 bits, the vendor's in the lower
}

// Field is a number that nvmlDeviceGetFieldValues tells: NVML_FI_DEV_*, and of some the link or other part it is of.
type Field struct {
	ID, Scope int
}

// FieldValue is the value of a Field, or why there is none.
type FieldValue struct {
	Value uint64
	Err   error
}

// FabricInfo is what is used of nvmlGpuFabricInfoV_t.
type FabricInfo struct {
	ClusterUUID [16]byte
	CliqueID    int
	State       int   // NVML_GPU_FABRIC_STATE_*
	Status      error // of a registration that is completed; nil if it worked
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

// ComputeInstanceInfo is nvmlComputeInstanceInfo_t and the UUID of the MIG device that the instance is.
type ComputeInstanceInfo struct {
	ID   int
	UUID string // "MIG-…"
}
