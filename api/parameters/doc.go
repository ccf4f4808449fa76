// SPDX-License-Identifier: Apache-2.0

// Package parameters decodes the opaque parameters of claims and DeviceClasses in either API: gpu.cleave.dev, or in
// NVIDIA-compatible mode NVIDIA's.
package parameters
