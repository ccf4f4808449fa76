// SPDX-License-Identifier: Apache-2.0

// Package store is a durable directory of versioned JSON documents. It stores claims, layouts, the active policy, driver sessions and
// the MPS supervisor's state.
//
// A document is written under a temporary name and renamed, so a write is atomic even if this process is
// killed. Claim records carry a boot ID and mean nothing after a reboot, so they are not synced (docs/decisions/record-sync.md).
// Documents that must survive a reboot, or are rarely written, are Durable.
package store
