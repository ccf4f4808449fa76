// SPDX-License-Identifier: Apache-2.0

// Package gpu is the domain: GPUs, their links, the shapes that a GPU can take (whole, partitions, shares), their names and the
// counters that they consume. It contains only observed facts, no policy. It knows neither Kubernetes nor NVML, and has no state:
// values are as of the read of the inventory.
package gpu
