// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// ModeChangeFormat is the version of files of mode changes that this release writes; see Format.
const ModeChangeFormat = 1

// ModeChange is a change of a GPU's MIG mode that was started and is not known to have finished. It records what to restore
// after a crash: a pending mode, and the persistence mode.
type ModeChange struct {
	// Format of the file, see the constant.
	Format int `json:"format"`
	// ReadableFrom is the earliest format whose releases can read the file; 0 for Format itself.
	ReadableFrom int `json:"readableFrom,omitempty"`
	// BootID of the boot in which it was started: a reboot ends it.
	BootID string `json:"bootID"`
	// GPU is the name of the whole-GPU device, UUID that of the GPU.
	GPU  string `json:"gpu"`
	UUID string `json:"uuid"`
	// Enable is the target mode.
	Enable bool `json:"enable"`
	// Persistence: the GPU's persistence mode was on and must be switched on again.
	Persistence bool `json:"persistence,omitempty"`
	// Unknown holds the fields of a later release; nil if there are none.
	Unknown any `json:"-"`
}

// ModeStore is the directory of the mode changes of one driver on one node, keyed by the name of the GPU's device.
type ModeStore = store.Directory[string, ModeChange]

// modeFormat defines how mode changes are stored.
var modeFormat = &store.Format[ModeChange]{
	Kind: "mode change", Limit: MaxSize, Version: ModeChangeFormat, Durable: true,
	VersionOf: func(m *ModeChange) (version, readableFrom int) { return m.Format, m.ReadableFrom },
	Unknown:   func(m *ModeChange) *any { return &m.Unknown },
	Check:     (*ModeChange).check,
	Name:      func(m *ModeChange) string { return m.GPU },
	Names:     isDevice,
}

// OpenModes opens the directory, creating it if necessary.
func OpenModes(disk store.FileSystem, dir string) (*ModeStore, error) {
	return store.Open[string](disk, dir, modeFormat)
}

func (m *ModeChange) check() error {
	if !devicePattern.MatchString(m.GPU) || m.UUID == "" {
		return fmt.Errorf("gpu %q and uuid %q do not identify a GPU", m.GPU, m.UUID)
	}
	return nil
}
