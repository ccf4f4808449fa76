// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// DeviceStatus is the data of a device in the status of its claim (status.devices[].data of a ResourceClaim). Names are those of
// the attributes of ResourceSlices where there is one. Absent is what the device does not have, or what is not known while the
// driver is away.
type DeviceStatus struct {
	// Type is that of ResourceSlices: gpu, mig, timeslice, mps, mig-timeslice or mig-mps.
	Type string `json:"type"`
	// UUID is what nvidia-smi -L and NVIDIA_VISIBLE_DEVICES call it: that of the partition or of the GPU.
	UUID string `json:"uuid"`
	// ParentUUID is that of a partition's GPU.
	ParentUUID  string `json:"parentUUID,omitempty"`
	ProductName string `json:"productName,omitempty"`
	// PCIBusID of the GPU, such as "0000:1b:00.0".
	PCIBusID string `json:"pciBusID,omitempty"`
	// PCIeRoot and NUMANode are where the GPU is attached.
	PCIeRoot string `json:"pcieRoot,omitempty"`
	NUMANode *int   `json:"numaNode,omitempty"`
	// Profile of a partition, such as "1g.10gb".
	Profile string `json:"profile,omitempty"`
	// GPUInstance and ComputeInstance are the IDs of a partition's instances (nvmlDeviceGetGpuInstanceId), by which DCGM
	// names it.
	GPUInstance     *int `json:"gpuInstanceID,omitempty"`
	ComputeInstance *int `json:"computeInstanceID,omitempty"`
	// Memory is the device's or, of a share, what the claim was granted.
	Memory *resource.Quantity `json:"memory,omitempty"`
	// Cores are the percentage of multiprocessors, of the GPU or partition, that a share was granted.
	Cores int64 `json:"cores,omitempty"`
	// Shares of a share that is counted by number.
	Shares int64 `json:"shares,omitempty"`
	// AdminAccess devices are only observed.
	AdminAccess bool `json:"adminAccess,omitempty"`
}
