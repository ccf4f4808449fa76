// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 holds what claims written for NVIDIA's own DRA driver give as opaque parameters: GpuConfig and
// MigDeviceConfig of API group resource.nvidia.com. They are understood in NVIDIA-compatible mode, which is on where the
// driver goes by the name of that one. Names of fields and kinds are NVIDIA's; what they mean here is documented in
// docs/nvidia-compatible.md.
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
