// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 contains the opaque parameters of claims written for NVIDIA's own DRA driver: GpuConfig and MigDeviceConfig of
// API group resource.nvidia.com. They are supported in NVIDIA-compatible mode, which is on if the driver has the name of NVIDIA's.
// Names of fields and kinds are NVIDIA's; docs/nvidia-compatible.md documents their meaning here.
package v1beta1

// DriverName is the name of NVIDIA's DRA driver for GPUs. A driver of that name is in compatible mode.
const DriverName = "gpu.nvidia.com"

// Group and Version of every kind in this package.
const (
	Group   = "resource.nvidia.com"
	Version = "v1beta1"
)

// APIVersion is what the apiVersion field of every kind must say.
const APIVersion = Group + "/" + Version
