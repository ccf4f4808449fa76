// SPDX-License-Identifier: Apache-2.0

package records

import "github.com/cleave-dra/cleave/pkg/store"

// What callers know by these names is in pkg/store.
type (
	FileSystem         = store.FileSystem
	Disk               = store.Disk
	CorruptError       = store.CorruptError
	CorruptLayoutError = store.CorruptError
)

// NewDisk as store.NewDisk.
func NewDisk() Disk { return store.NewDisk() }
