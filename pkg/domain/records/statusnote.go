// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// StatusFormat is the version of status notes that this release writes; see Format.
const StatusFormat = 1

// StatusNote records that the status of a claim may list devices of this driver and node. It is written before the status,
// and removed once the API server has removed those devices.
type StatusNote struct {
	// Format of the file, see the constant.
	Format int `json:"format"`
	// ReadableFrom is the earliest format whose releases can read the file; 0 for Format itself.
	ReadableFrom int   `json:"readableFrom,omitempty"`
	Claim        Claim `json:"claim"`
}

// StatusNotes is the directory of the status notes of one driver on one node, keyed by claim UID.
type StatusNotes = store.Directory[types.UID, StatusNote]

// statusFormat defines how status notes are stored.
var statusFormat = &store.Format[StatusNote]{
	Kind: "status note", Limit: MaxSize, Version: StatusFormat, Durable: true,
	VersionOf: func(n *StatusNote) (version, readableFrom int) { return n.Format, n.ReadableFrom },
	Check:     (*StatusNote).check,
	Describe:  func(n *StatusNote) string { return n.Claim.String() },
	Name:      func(n *StatusNote) string { return string(n.Claim.UID) },
	Names:     uidPattern.MatchString,
}

// OpenStatusNotes opens the directory, creating it if necessary.
func OpenStatusNotes(disk store.FileSystem, dir string) (*StatusNotes, error) {
	return store.Open[types.UID](disk, dir, statusFormat)
}

func (n *StatusNote) check() error {
	if !uidPattern.MatchString(string(n.Claim.UID)) || n.Claim.Name == "" || n.Claim.Namespace == "" {
		return fmt.Errorf("claim %s is not named by namespace, name and UID", n.Claim)
	}
	return nil
}
