// SPDX-License-Identifier: Apache-2.0

// Package claims prepares and unprepares allocated claims on the node.
//
// The invariant: a GPU is never allocated to two claims unless the claim has admin access; an allocation is on disk
// before the kubelet hears of success; every step can be repeated; the failure of one claim does not affect others.
//
// There are three types. Preparer prepares, unprepares, recovers and reconciles claims. Partitions creates and destroys
// partitions, for claims and ahead of them, and tracks unmanaged ones. Shares sets up time slicing and MPS on GPUs.
// All work on a Ledger: the records and layouts on disk, their index in memory, and the locks of GPUs.
//
// Prepare has five steps, each in its own file: plan (pure: allocation and parameters to devices), admit (checks against
// the index with the GPUs locked), record (the intended change), change (the hardware), inject (CDI, and the final
// record). Claims on different GPUs share only the index's mutex, which is never held across I/O.
package claims
