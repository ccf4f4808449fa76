// SPDX-License-Identifier: Apache-2.0

// Package gpu is the domain: GPUs, their links, the shapes that a GPU can take (whole, partitions, shares), their names and
// the counters that they consume. It holds observed facts only, no policy. It knows neither Kubernetes nor NVML, and holds no
// state: whatever a value says was true when the inventory was read.
package gpu
