// SPDX-License-Identifier: Apache-2.0

package records

import "github.com/cleave-dra/cleave/pkg/domain/store"

// Reset is the last reset of a GPU that was carried out on request.
type Reset struct {
	// Format of the file.
	Format int `json:"format"`
	// Request is the value of the node's label that requested it.
	Request string `json:"request"`
	// Unknown holds the fields of a later release; nil if there are none.
	Unknown any `json:"-"`
}

// ResetFormat is the version of the file that this release writes; see Format.
const ResetFormat = 1

// ResetFile is the name of the file in the directory of a node.
const ResetFile = "reset.json"

// resetFormat defines how the last reset is stored. A label's value has at most 63 bytes.
var resetFormat = &store.Format[Reset]{
	Kind: "reset", Limit: 4 << 10, Version: ResetFormat, Durable: true,
	VersionOf: func(r *Reset) (version, readableFrom int) { return r.Format, 0 },
	Unknown:   func(r *Reset) *any { return &r.Unknown },
}

// NewResetFile does not touch the disk.
func NewResetFile(disk store.FileSystem, path string) *store.File[Reset] {
	return store.NewFile(disk, path, resetFormat)
}
