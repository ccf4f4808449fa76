// SPDX-License-Identifier: Apache-2.0

// Package simulated opens NVML sessions on simulated nodes, in process and without a library: for tests, and to show what a node of
// a known model would publish.
package simulated
