// SPDX-License-Identifier: Apache-2.0

// Package usage counts how much of a node's GPUs is allocated and free, by tier, lists what each claim has, and makes figures of what it
// does with it.
//
// It is pure: it computes numbers from published devices, records of claims, and readings of GPUs.
package usage
