// SPDX-License-Identifier: Apache-2.0

// Package records defines the documents that the plugin stores about claims and layouts, so that allocations survive crashes
// and restarts, and how they are read and written (pkg/domain/store).
package records
