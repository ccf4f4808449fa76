// SPDX-License-Identifier: Apache-2.0

// Package smi runs nvidia-smi, the driver's own tool, for what NVML does not do: the MIG mode and the reset of a GPU that this
// process has closed, and the interval of time slices.
package smi
