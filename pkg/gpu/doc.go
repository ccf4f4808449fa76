// SPDX-License-Identifier: Apache-2.0

// Package gpu is the domain: GPUs, their links, the shapes they can take, the names of those shapes and their order.
// It knows neither Kubernetes nor NVML, and holds no state: whatever a value says was true when the inventory was read.
package gpu
