// SPDX-License-Identifier: Apache-2.0

// Package claims prepares and unprepares allocated claims on the node.
//
// The invariant: a GPU is never allocated to two claims unless the claim has admin access; what a claim has is on disk
// before the kubelet hears of success; every step can be repeated; the failure of one claim does not affect others.
//
// There are three types. Preparer prepares, unprepares, recovers and reconciles claims. Partitions creates and destroys
// partitions, for claims and ahead of them, and knows those that are unmanaged. Shares makes GPUs shared in time or by MPS.
// All work on a Ledger: the records and layouts on disk, their index in memory, and the locks of GPUs.
//
// Prepare is five steps, each in a file of its own: plan (pure: allocation and parameters to devices), admit (one look into
// the index with the GPUs locked), record (what is about to change), change (the hardware), inject (CDI, and the final
// record). Claims on different GPUs share nothing but the index's mutex, which is never held across I/O.
package claims
