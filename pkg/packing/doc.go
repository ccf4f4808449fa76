// SPDX-License-Identifier: Apache-2.0

// Package packing is the order in which devices are offered, which is the packing algorithm: the scheduler takes the first
// one that fits. It is pure.
package packing
