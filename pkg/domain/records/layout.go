// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// LayoutFormat is the version of layout files that this release writes; see Format.
const LayoutFormat = 1

// Layout records how Cleave has partitioned a GPU ahead of claims, or was about to: a partition at one of its places was created by
// Cleave, any other was not.
type Layout struct {
	// Format of the file, see the constant.
	Format int `json:"format"`
	// ReadableFrom is the earliest format whose releases can read the file; 0 for Format itself.
	ReadableFrom int `json:"readableFrom,omitempty"`
	// BootID of the boot in which the partitions were created; they do not survive a reboot.
	BootID string `json:"bootID"`
	// Session of the driver in which they were created; empty in layouts of releases that did not record it.
	Session string `json:"driverSession,omitempty"`
	// GPU is the name of the whole-GPU device, UUID that of the GPU.
	GPU  string `json:"gpu"`
	UUID string `json:"uuid"`
	// Places in order of start.
	Places []gpu.Place `json:"places"`
	// Offered are the places of the policy's layout, in order of start: existing partitions, partitions allocated to claims, and those
	// not created yet. A layout keeps its places, also across reboots, as claims may already be allocated them.
	Offered []gpu.Place `json:"offered,omitempty"`
	// Witnesses of the partitions at Places, recorded when the driver was released: while one is unchanged, so is its partition. Empty in
	// layouts of releases that did not record them.
	Witnesses []LayoutWitness `json:"witnesses,omitempty"`
	// Unknown holds the fields of a later release; nil if there are none.
	Unknown any `json:"-"`
}

// LayoutWitness is the witness of the partition at a place, see Device.Witness.
type LayoutWitness struct {
	Place   gpu.Place `json:"place"`
	Witness string    `json:"witness"`
}

// Has reports whether Cleave created the partition at a place; false without a layout.
func (l *Layout) Has(at gpu.Place) bool {
	return l != nil && slices.Contains(l.Places, at)
}

// LayoutStore is the directory of the layouts of one driver on one node, keyed by the name of the GPU's device.
type LayoutStore = store.Directory[string, Layout]

// layoutFormat defines how layouts are stored.
var layoutFormat = &store.Format[Layout]{
	Kind: "layout", Limit: MaxSize, Version: LayoutFormat, Copied: true, Durable: true,
	VersionOf: func(l *Layout) (version, readableFrom int) { return l.Format, l.ReadableFrom },
	Unknown:   func(l *Layout) *any { return &l.Unknown },
	Check:     (*Layout).check,
	Name:      func(l *Layout) string { return l.GPU },
	Names:     isDevice,
}

// OpenLayouts opens the directory, creating it if necessary.
func OpenLayouts(disk store.FileSystem, dir string) (*LayoutStore, error) {
	return store.Open[string](disk, dir, layoutFormat)
}

// ListLayouts reads all layouts of a directory without creating anything.
func ListLayouts(disk store.FileSystem, dir string) (all []*Layout, corrupt []error, err error) {
	return store.At[string](disk, dir, layoutFormat).List()
}

// devicePattern matches the device names of whole GPUs.
var devicePattern = regexp.MustCompile(`^gpu-[0-9a-f]+(-[0-9a-f]+)*$`)

func isDevice(name string) bool { return devicePattern.MatchString(name) && len(name) <= 63 }

// DecodeLayout reads a layout; see Decode.
func DecodeLayout(data []byte) (*Layout, error) { return layoutFormat.Decode(data) }

func (l *Layout) check() error {
	if !devicePattern.MatchString(l.GPU) || l.UUID == "" {
		return fmt.Errorf("gpu %q and uuid %q do not identify a GPU", l.GPU, l.UUID)
	}
	return nil
}
