// SPDX-License-Identifier: Apache-2.0

// Package store is a durable directory of versioned JSON documents: claims, layouts, the active policy, driver sessions and
// the MPS supervisor's state are kept with it.
//
// A document is written to a temporary name and renamed: it is there whole or not at all, also for who comes after this process was
// killed. Records of claims carry a boot ID and mean nothing after a reboot, so they are not synced (docs/decisions/record-sync.md). What
// outlives a reboot, or is written rarely, is Durable.
package store
