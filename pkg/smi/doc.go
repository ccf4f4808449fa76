// SPDX-License-Identifier: Apache-2.0

// Package smi runs nvidia-smi, the driver's own tool, for what takes a GPU that this process has closed: its MIG mode and its
// reset.
package smi
