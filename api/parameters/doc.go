// SPDX-License-Identifier: Apache-2.0

// Package parameters holds what claims and DeviceClasses ask of the driver by opaque parameters, whichever API they are
// written in: gpu.cleave.dev, or in NVIDIA-compatible mode NVIDIA's.
package parameters
