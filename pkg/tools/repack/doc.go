// SPDX-License-Identifier: Apache-2.0

// Package repack advises which pods to restart so that GPUs become whole again: few pods for many GPUs, each with the places that its
// replacement may get.
//
// It replays restarts one after the other on the model of pkg/domain/packing, as cleave-scheduler places pods with the strategy pack:
// the exact first fit on every node, the cheapest node. A replacement may be scheduled while the old pod still has its devices,
// or after it gave them back; only restarts that end at the same place either way are advised. Nothing is written.
package repack
