// SPDX-License-Identifier: Apache-2.0

// Package sim is a simulated GPU node: boards, links, partitions, faults, and the rules that real boards enforce.
//
// A [Node] gives the same answers and errors as libnvidia-ml.so.1. It exists in memory ([New], for tests and offline work) or under
// a directory ([Create], [Open]), where its state outlives processes like that of a real GPU: every process that opens the
// directory sees the same GPUs, and changes by one are visible to the next call of another. cmd/nvml-sim wraps the second kind in a
// shared library that programs load as NVML.
//
// The methods of a node are grouped: [Node.Faults] for failing calls, [Node.Hardware] for hardware events, [Node.Driver],
// [Node.Clients] and [Node.Files]; a [Device] has MIG, Links, Memory, Modes and Telemetry.
//
// Package mps simulates NVIDIA's MPS programs on such a node.
//
// The capabilities of boards (boards/*.json) and the composition of nodes (models/*.json) are data; code contains only rules.
package sim
