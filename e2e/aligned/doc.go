// SPDX-License-Identifier: Apache-2.0

// Package aligned tests claims of GPUs, CPUs and network cards of one NUMA node, with the DRA drivers dra-driver-cpu and dranet beside
// Cleave. It needs CLEAVE_E2E=1.
//
// The drivers are the real programs. What they find is simulated: the CPUs of the machine are in two NUMA nodes, and pairs of virtual
// interfaces are those of the network cards of the simulated node.
package aligned
