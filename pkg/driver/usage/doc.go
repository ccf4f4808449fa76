// SPDX-License-Identifier: Apache-2.0

// Package usage counts how much of a node's GPUs is allocated and free, by tier, and lists what each claim has.
//
// It is pure: it computes numbers from published devices and records of claims.
package usage
