// SPDX-License-Identifier: Apache-2.0

// Package records keeps one durable file per prepared claim, so that what a claim holds outlives the plugin.
//
// A file is written to a temporary name, synced and renamed: it is there whole or not at all. The folder itself is
// not synced. After a power cut the last rename may be missing, but then the boot ID has changed too and nothing that
// a record stood for has outlived the reboot.
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

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Format is the version this release writes. It reads every version up to it, and later ones that say so by readableFrom:
// what only adds fields can be read by the releases before, which keep the fields.
const Format = 1

// MaxSize bounds the size of a record file in bytes. A claim has at most 32 devices, some 400 bytes each.
const MaxSize = 256 << 10

// Record is what one claim holds on this node.
type Record struct {
	// Format of the file, see the constant.
	Format int `json:"format"`
	// ReadableFrom is the earliest format whose releases can read the file; 0 for Format itself.
	ReadableFrom int `json:"readableFrom,omitempty"`
	// BootID of the boot in which the claim was prepared (/proc/sys/kernel/random/boot_id).
	BootID string `json:"bootID"`
	// State of what the record stands for; the zero value is Prepared.
	State State `json:"state,omitempty"`
	Claim Claim `json:"claim"`
	// Pods that reserved the claim, as far as they are known.
	Pods []types.UID `json:"pods,omitempty"`
	// Devices in the order of the claim's allocation.
	Devices []Device `json:"devices"`
	// Later are the fields of a later release; nil if there are none.
	Later any `json:"-"`
}

// State tells how far a claim is.
type State string

const (
	// Prepared: everything that the record lists is there.
	Prepared State = ""
	// Preparing: the hardware is being changed, or a change was cut short. Any of the record's partitions may exist.
	Preparing State = "preparing"
	// Releasing: the claim holds nothing any more, and its partitions are still to be destroyed.
	Releasing State = "releasing"
)

// Claim identifies a ResourceClaim. A name can be reused, a UID cannot.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// String is "namespace/name (UID)".
func (c Claim) String() string {
	return c.Namespace + "/" + c.Name + " (" + string(c.UID) + ")"
}

// Device is one allocated device of a claim.
type Device struct {
	// Request is the request, or "request/subrequest", that the device answers.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// AdminAccess devices are looked at, not held.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// GPU is the name of the whole-GPU device of the GPU this device is made of.
	GPU string `json:"gpu"`
	// UUID of the GPU when the claim was prepared.
	UUID string `json:"uuid"`
	// Partition is what the device is on the GPU; nil for a whole GPU. While the record is Preparing it tells only
	// profile and placement.
	Partition *gpu.Partition `json:"partition,omitempty"`
	// Session of the driver in which the partition was created, see pkg/driversession; empty in records of releases that
	// noted none.
	Session string `json:"driverSession,omitempty"`
	// Witness of the partition, noted when the driver was released: while it is the same, so is the partition.
	Witness string `json:"witness,omitempty"`
	// Share is the claim's part of a shared GPU; nil for others, and for devices with admin access.
	Share *Share `json:"share,omitempty"`
	// CDIDeviceIDs are the fully qualified names handed to the kubelet.
	CDIDeviceIDs []string `json:"cdiDeviceIDs"`
}

// GPUs are the names of all GPUs the record's devices are made of, sorted, once each.
func (r *Record) GPUs() []string {
	var names []string
	for _, d := range r.Devices {
		names = append(names, d.GPU)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ErrTooLong is a file longer than the limit of a read.
var ErrTooLong = errors.New("file is too long")

// FileSystem is what a Store needs of a disk.
type FileSystem interface {
	MkdirAll(path string, mode fs.FileMode) error
	// ReadDir lists the names of a folder's entries, sorted.
	ReadDir(path string) ([]string, error)
	// ReadFile reads at most limit bytes and fails if the file is longer.
	ReadFile(path string, limit int64) ([]byte, error)
	// WriteFile makes a file appear with its whole content, synced, or not at all.
	WriteFile(path string, data []byte) error
	Rename(from, to string) error
	// Remove deletes a file; a missing one is no error.
	Remove(path string) error
	// Sweep deletes what interrupted writes have left in a folder.
	Sweep(dir string) error
}

// Store is the folder of the records of one driver on one node.
type Store struct {
	fs  FileSystem
	dir string
}

const (
	suffix     = ".json"
	corruptDir = "corrupt"
)

// OpenStore makes the folder if need be and checks that it can be listed.
func OpenStore(filesystem FileSystem, dir string) (*Store, error) {
	s := &Store{fs: filesystem, dir: filepath.Clean(dir)}
	if err := filesystem.MkdirAll(filepath.Join(s.dir, corruptDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for claim records: %w", err)
	}
	if _, err := filesystem.ReadDir(s.dir); err != nil {
		return nil, fmt.Errorf("list the folder of claim records: %w", err)
	}
	if err := filesystem.Sweep(s.dir); err != nil {
		return nil, fmt.Errorf("sweep the folder of claim records: %w", err)
	}
	return s, nil
}

// List reads all records of a folder and makes nothing; a missing folder has none. Files that should be records and are not
// are passed over and told, as CorruptErrors.
func List(filesystem FileSystem, dir string) (all []*Record, corrupt []error, err error) {
	s := &Store{fs: filesystem, dir: filepath.Clean(dir)}
	uids, err := s.UIDs()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, uid := range uids {
		r, err := s.Read(uid)
		bad := (*CorruptError)(nil)
		switch {
		case errors.As(err, &bad):
			corrupt = append(corrupt, err)
		case err != nil:
			return nil, nil, err
		case r != nil: // else it has just been removed
			all = append(all, r)
		}
	}
	return all, corrupt, nil
}

// Dir is the folder.
func (s *Store) Dir() string { return s.dir }

// Write makes a record durable, in place of the claim's earlier one.
func (s *Store) Write(r *Record) error {
	path, err := s.path(r.Claim.UID)
	if err != nil {
		return err
	}
	data, err := encodeLater(r, r.Later)
	if err != nil {
		return fmt.Errorf("encode the record of claim %s: %w", r.Claim, err)
	}
	if err := s.fs.WriteFile(path, data); err != nil {
		return fmt.Errorf("write the record of claim %s: %w", r.Claim, err)
	}
	return nil
}

// Remove deletes the record of a claim. A claim without one is no error.
func (s *Store) Remove(uid types.UID) error {
	path, err := s.path(uid)
	if err != nil {
		return err
	}
	if err := s.fs.Remove(path); err != nil {
		return fmt.Errorf("remove the record of claim %s: %w", uid, err)
	}
	return nil
}

// CorruptError is a record file that cannot be read as one.
type CorruptError struct {
	// UID of the claim, from the file's name.
	UID  types.UID
	Path string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("read the claim record %s: %v", e.Path, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// Read returns the record of one claim: nil if there is none, a CorruptError if the file is no record.
func (s *Store) Read(uid types.UID) (*Record, error) {
	path, err := s.path(uid)
	if err != nil {
		return nil, err
	}
	data, err := s.fs.ReadFile(path, MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no record is an ordinary answer, not a failure
	}
	if errors.Is(err, ErrTooLong) || errors.Is(err, syscall.EISDIR) {
		return nil, &CorruptError{UID: uid, Path: path, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read the claim record %s: %w", path, err)
	}
	r, err := Decode(data)
	if err == nil && r.Claim.UID != uid {
		err = fmt.Errorf("it is of claim %s", r.Claim)
	}
	if err != nil {
		return nil, &CorruptError{UID: uid, Path: path, Err: err}
	}
	return r, nil
}

// UIDs lists the claims that have a record, sorted. Other files in the folder are passed over.
func (s *Store) UIDs() ([]types.UID, error) {
	names, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the folder of claim records: %w", err)
	}
	var uids []types.UID
	for _, name := range names {
		if uid, ok := strings.CutSuffix(name, suffix); ok && uidPattern.MatchString(uid) {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids, nil
}

// SetAside moves the file of a corrupt record out of the way, where an engineer can read it, and returns its new path.
func (s *Store) SetAside(uid types.UID) (string, error) {
	path, err := s.path(uid)
	if err != nil {
		return "", err
	}
	aside := filepath.Join(s.dir, corruptDir, filepath.Base(path))
	if err := s.fs.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set aside the claim record %s: %w", path, err)
	}
	return aside, nil
}

// uidPattern keeps anything but a plain name out of paths.
var uidPattern = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,63}$`)

func (s *Store) path(uid types.UID) (string, error) {
	if !uidPattern.MatchString(string(uid)) {
		return "", fmt.Errorf("claim UID %q is not letters, digits and dashes", uid)
	}
	return filepath.Join(s.dir, string(uid)+suffix), nil
}

// Decode reads a record of this or an earlier format, or of a later one that this release can read. Fields it does not
// know are kept.
func Decode(data []byte) (*Record, error) {
	r := &Record{}
	var err error
	if r.Later, err = decodeLater(data, r); err != nil {
		return nil, err
	}
	switch {
	case !readable(r.Format, r.ReadableFrom, Format):
		return nil, fmt.Errorf("format %d (readable from %d) is not one of 1 to %d", r.Format, r.ReadableFrom, Format)
	case !uidPattern.MatchString(string(r.Claim.UID)):
		return nil, fmt.Errorf("claim UID %q is not letters, digits and dashes", r.Claim.UID)
	case r.State != Prepared && r.State != Preparing && r.State != Releasing:
		return nil, fmt.Errorf("state %q is not one of %q, %q, %q", r.State, Prepared, Preparing, Releasing)
	case len(r.Devices) == 0:
		return nil, errors.New("it lists no devices")
	}
	for i, d := range r.Devices {
		if d.Device == "" || d.GPU == "" || d.UUID == "" {
			return nil, fmt.Errorf("devices[%d] lacks device, gpu or uuid", i)
		}
		if s := d.Share; s != nil && (!slices.Contains(gpu.Shares(), s.Kind) || s.ID == "" || s.Kind == gpu.MPS && s.MPS == nil || d.Partition != nil) {
			return nil, fmt.Errorf("devices[%d] is no whole share, of kind %q", i, s.Kind)
		}
	}
	return r, nil
}

// readable tells whether a release of a format can read a file.
func readable(format, from, own int) bool {
	return format >= 1 && from >= 0 && from <= format && (format <= own || from >= 1 && from <= own)
}

// Partitions lists the devices that are partitions of the record's own; those with admin access are somebody else's.
func (r *Record) Partitions() []*Device {
	var found []*Device
	for i := range r.Devices {
		if r.Devices[i].Partition != nil && !r.Devices[i].AdminAccess {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// InSpec lists the devices for which something is made beside the record: partitions and shares, and partitions that the
// claim looks at.
func (r *Record) InSpec() []*Device {
	var found []*Device
	for i := range r.Devices {
		if r.Devices[i].Partition != nil || r.Devices[i].Share != nil {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// HasEdits reports whether containers get more for a device than for its whole GPU. Those of a claim that shares a GPU in
// time among its own processes do not: CDI has no device without edits (its specification, "containerEdits").
func (d *Device) HasEdits() bool {
	return d.Partition != nil || d.Share != nil && (!d.Share.Exclusive || d.Share.Kind == gpu.MPS)
}

// WithEdits lists the devices of the claim's own CDI spec.
func (r *Record) WithEdits() []*Device {
	return slices.DeleteFunc(r.InSpec(), func(d *Device) bool { return !d.HasEdits() })
}

// Clone returns a copy that shares nothing with the record.
func (r *Record) Clone() *Record {
	c := *r
	c.Pods, c.Devices = slices.Clone(r.Pods), slices.Clone(r.Devices)
	for i := range c.Devices {
		d := &c.Devices[i]
		d.CDIDeviceIDs = slices.Clone(d.CDIDeviceIDs)
		if d.Partition != nil {
			p := *d.Partition
			d.Partition = &p
		}
		if d.Share != nil {
			d.Share = d.Share.clone()
		}
	}
	return &c
}
