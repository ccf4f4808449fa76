// SPDX-License-Identifier: Apache-2.0

// Package mps shares GPUs among claims: time slices by the driver's nvidia-smi, MPS by the node's supervisor, a process of
// its own that starts, watches and stops one MPS control daemon per GPU (pkg/driver/mps/supervisor), so that a plugin that is
// upgraded or crashes never ends an MPS server. It holds the supervisor's client and the types that both sides share.
package mps
