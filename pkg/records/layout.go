// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// LayoutFormat is the version of layout files that this release writes; see Format.
const LayoutFormat = 1

// Layout is what Cleave has cut a GPU into ahead of claims, or was about to: what lies at one of its places was made by
// Cleave, and what lies elsewhere was not.
type Layout struct {
	// Format of the file, see the constant.
	Format int `json:"format"`
	// ReadableFrom is the earliest format whose releases can read the file; 0 for Format itself.
	ReadableFrom int `json:"readableFrom,omitempty"`
	// BootID of the boot in which the partitions were made; they do not outlive it.
	BootID string `json:"bootID"`
	// Session of the driver in which they were made; empty in layouts of releases that noted none.
	Session string `json:"driverSession,omitempty"`
	// GPU is the name of its whole-GPU device, UUID that of the GPU.
	GPU  string `json:"gpu"`
	UUID string `json:"uuid"`
	// Places in order of start.
	Places []gpu.Place `json:"places"`
	// Later are the fields of a later release; nil if there are none.
	Later any `json:"-"`
}

// Has tells whether a partition at a place was made by Cleave; nothing is where there is no layout.
func (l *Layout) Has(at gpu.Place) bool {
	return l != nil && slices.Contains(l.Places, at)
}

// LayoutStore is the folder of the layouts of one driver on one node, one file for each GPU.
type LayoutStore struct {
	fs  FileSystem
	dir string
}

// OpenLayouts makes the folder if need be.
func OpenLayouts(filesystem FileSystem, dir string) (*LayoutStore, error) {
	s := &LayoutStore{fs: filesystem, dir: filepath.Clean(dir)}
	if err := filesystem.MkdirAll(filepath.Join(s.dir, corruptDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for layouts: %w", err)
	}
	if err := filesystem.Sweep(s.dir); err != nil {
		return nil, fmt.Errorf("sweep the folder of layouts: %w", err)
	}
	return s, nil
}

// devicePattern keeps anything but a device's name out of paths.
var devicePattern = regexp.MustCompile(`^gpu-[0-9a-f]+(-[0-9a-f]+)*$`)

func (s *LayoutStore) path(device string) (string, error) {
	if !devicePattern.MatchString(device) || len(device) > 63 {
		return "", fmt.Errorf("%q is no name of a GPU's device", device)
	}
	return filepath.Join(s.dir, filepath.Base(device+suffix)), nil
}

// Write makes a layout durable, in place of the GPU's earlier one.
func (s *LayoutStore) Write(l *Layout) error {
	path, err := s.path(l.GPU)
	if err != nil {
		return err
	}
	data, err := encodeLater(l, l.Later)
	if err != nil {
		return fmt.Errorf("encode the layout of %s: %w", l.GPU, err)
	}
	if err := s.fs.WriteFile(path, data); err != nil {
		return fmt.Errorf("write the layout of %s: %w", l.GPU, err)
	}
	return nil
}

// Remove deletes the layout of a GPU. A GPU without one is no error.
func (s *LayoutStore) Remove(device string) error {
	path, err := s.path(device)
	if err != nil {
		return err
	}
	if err := s.fs.Remove(path); err != nil {
		return fmt.Errorf("remove the layout of %s: %w", device, err)
	}
	return nil
}

// Read returns the layout of a GPU, or nil. What cannot be read as one is a CorruptLayoutError.
func (s *LayoutStore) Read(device string) (*Layout, error) {
	path, err := s.path(device)
	if err != nil {
		return nil, err
	}
	data, err := s.fs.ReadFile(path, MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no layout is an ordinary answer, not a failure
	}
	if err != nil && !errors.Is(err, ErrTooLong) && !errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("read the layout %s: %w", path, err)
	}
	var l *Layout
	if err == nil {
		l, err = DecodeLayout(data)
	}
	if err == nil && l.GPU != device {
		err = fmt.Errorf("it is of %s", l.GPU)
	}
	if err != nil {
		return nil, &CorruptLayoutError{GPU: device, Path: path, Err: err}
	}
	return l, nil
}

// CorruptLayoutError is a layout file that cannot be read as one.
type CorruptLayoutError struct {
	GPU, Path string
	Err       error
}

func (e *CorruptLayoutError) Error() string {
	return fmt.Sprintf("read the layout %s: %v", e.Path, e.Err)
}

func (e *CorruptLayoutError) Unwrap() error { return e.Err }

// GPUs lists the devices that have a layout, sorted. Other files in the folder are passed over.
func (s *LayoutStore) GPUs() ([]string, error) {
	names, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the folder of layouts: %w", err)
	}
	var devices []string
	for _, name := range names {
		if device, ok := strings.CutSuffix(name, suffix); ok && devicePattern.MatchString(device) {
			devices = append(devices, device)
		}
	}
	return devices, nil
}

// ListLayouts reads all layouts of a folder as List reads records; what cannot be read is told as CorruptLayoutErrors.
func ListLayouts(filesystem FileSystem, dir string) (all []*Layout, corrupt []error, err error) {
	s := &LayoutStore{fs: filesystem, dir: filepath.Clean(dir)}
	devices, err := s.GPUs()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, device := range devices {
		l, err := s.Read(device)
		bad := (*CorruptLayoutError)(nil)
		switch {
		case errors.As(err, &bad):
			corrupt = append(corrupt, err)
		case err != nil:
			return nil, nil, err
		case l != nil:
			all = append(all, l)
		}
	}
	return all, corrupt, nil
}

// SetAside moves a corrupt file out of the way, where an engineer can read it, and returns its new path.
func (s *LayoutStore) SetAside(device string) (string, error) {
	path, err := s.path(device)
	if err != nil {
		return "", err
	}
	aside := filepath.Join(s.dir, corruptDir, filepath.Base(path))
	if err := s.fs.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set aside the layout %s: %w", path, err)
	}
	return aside, nil
}

// DecodeLayout reads a layout as Decode reads a record.
func DecodeLayout(data []byte) (*Layout, error) {
	l := &Layout{}
	var err error
	if l.Later, err = decodeLater(data, l); err != nil {
		return nil, err
	}
	switch {
	case !readable(l.Format, l.ReadableFrom, LayoutFormat):
		return nil, fmt.Errorf("format %d (readable from %d) is not one of 1 to %d", l.Format, l.ReadableFrom, LayoutFormat)
	case !devicePattern.MatchString(l.GPU) || l.UUID == "":
		return nil, fmt.Errorf("gpu %q and uuid %q do not name a GPU", l.GPU, l.UUID)
	}
	return l, nil
}
