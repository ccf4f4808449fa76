// SPDX-License-Identifier: Apache-2.0

// Package packing replays what workloads ask for through the scheduler's own allocator, on the slices that Cleave
// publishes for a simulated node, and compares the order of devices that Cleave chose with another one.
package packing
