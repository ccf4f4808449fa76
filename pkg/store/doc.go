// SPDX-License-Identifier: Apache-2.0

// Package store is a durable directory of versioned JSON documents: claims, layouts, the active policy, driver sessions and
// the MPS supervisor's state are kept with it.
//
// A document is written to a temporary name, synced and renamed: it is there whole or not at all. Most documents carry a
// boot ID and mean nothing after a reboot, so their directory is not synced: after a power cut the last rename may be
// missing, but then the boot ID has changed, too. Those that outlive a reboot are Durable.
package store
