// SPDX-License-Identifier: Apache-2.0

// Package records is what the plugin stores about claims and layouts, so that allocations survive crashes and restarts:
// the types of the documents and how they are read and written (pkg/domain/store).
package records
