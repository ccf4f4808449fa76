// SPDX-License-Identifier: Apache-2.0

// Package claims makes allocated claims real on the node and undoes them: Prepare, Unprepare, Load and Reconcile.
//
// The invariant: a GPU is never allocated to two claims unless the claim has admin access; what a claim has is on disk
// before the kubelet hears of success; every step can be repeated; the failure of one claim does not affect others.
//
// Data flows one way: allocation -> plan (pure) -> locks of the GPUs -> index of holders -> hardware and CDI checks ->
// record -> answer. Claims on different GPUs share nothing but the index's mutex, which is never held across I/O.
package claims
