// SPDX-License-Identifier: Apache-2.0

// Package sim is a simulated GPU node: boards, links, partitions, faults, and the rules that real boards enforce.
//
// A [Node] answers what libnvidia-ml.so.1 answers, in the same words and with the same errors. It lives in memory
// ([New], for tests and offline work) or under a directory ([Create], [Open]), where its state outlives processes as
// that of a real GPU does: every process that opens the directory sees the same GPUs, and a change made by one is seen
// by the next call of another. cmd/nvml-sim wraps the second kind in a shared library that programs load as NVML.
//
// What a node does is grouped: [Node.Faults] for calls that fail, [Node.Hardware] for what happens to GPUs, [Node.Driver],
// [Node.Clients] and [Node.Files]; a [Device] has MIG, Links, Memory, Modes and Telemetry.
//
// Package mps alongside it is what NVIDIA's MPS programs do on such a node.
//
// What a board can do is data (boards/*.json), and so is what a node is made of (models/*.json); code holds only rules.
package sim
