// SPDX-License-Identifier: Apache-2.0

// Package simulation is a simulated pool of equal nodes: pods arrive, are placed, and leave. The scheduler's own allocator
// chooses devices; a Strategy chooses nodes. The same workload, pool and seed give the same result, but for
// requests that are given up because the allocator takes too long.
package simulation
