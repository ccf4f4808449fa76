// SPDX-License-Identifier: Apache-2.0

package driversession

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strconv"
	"sync"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// file is the persistent state.
type file struct {
	Format int    `json:"format"`
	BootID string `json:"bootID"`
	// Release identifies a release of the driver; it is never used again.
	Release string `json:"release"`
	// First is the first session of each GPU in this boot, by device.
	First map[string]string `json:"first,omitempty"`
}

// format is how the file is stored. A node has some tens of GPUs.
var format = &store.Format[file]{
	Kind: "driver session", Limit: 64 << 10, Version: 1,
	VersionOf: func(f *file) (version, readableFrom int) { return f.Format, 0 },
}

// Sessions are those of the GPUs of a node. All methods are safe for concurrent use.
type Sessions struct {
	stored      *store.File[file]
	sysfs, proc fs.FS

	// writing is held while the disk is waited for, mu is not: the control loop and Prepare take it.
	writing sync.Mutex

	mu   sync.Mutex
	file file
	// unsaved is set while the file is out of date.
	unsaved bool
}

// Open reads the file, or begins with the first session of this boot. An unreadable file begins a session that is not the first: no
// record belongs to it.
func Open(disk store.FileSystem, path, bootID string, sysfs, procfs fs.FS) (*Sessions, error) {
	s := &Sessions{stored: store.NewFile(disk, path, format), sysfs: sysfs, proc: procfs}
	was, err := s.stored.Read()
	if corrupt := (*store.CorruptError)(nil); err != nil && !errors.As(err, &corrupt) {
		return nil, err
	}
	if was != nil && was.BootID == bootID && was.Release != "" {
		s.file = *was
		return s, nil
	}
	s.file = file{Format: format.Version, BootID: bootID, Release: rand.Text()}
	return s, s.write()
}

// write saves the state. The caller must hold writing, and not mu.
func (s *Sessions) write() error {
	s.mu.Lock()
	state := s.file
	state.First = maps.Clone(state.First)
	s.mu.Unlock()
	err := s.stored.Write(&state)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsaved = err != nil
	return err
}

// Begin notes the GPUs of a driver that has just been opened, and so cannot be unloaded.
func (s *Sessions) Begin(devices []string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.begin(devices) {
		return nil
	}
	return s.write()
}

// begin is Begin but for the file. It reports whether that is out of date.
func (s *Sessions) begin(devices []string) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.unsaved
	for _, d := range devices {
		if s.file.First[d] != "" {
			continue
		}
		if s.file.First == nil {
			s.file.First = map[string]string{}
		}
		s.file.First[d], changed = s.of(d), true
	}
	return changed
}

// End ends the sessions of all GPUs, before the driver is released. On a full disk it removes the file, which has the same effect.
func (s *Sessions) End() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	s.file.Release = rand.Text()
	s.mu.Unlock()
	err := s.write()
	if err == nil {
		return nil
	}
	if removeErr := s.stored.Remove(); removeErr != nil {
		return errors.Join(err, removeErr)
	}
	return nil
}

// Of is the current session of the GPU of a whole-GPU device.
func (s *Sessions) Of(device string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of(device)
}

// of is Of; the caller holds mu. The kernel never reuses an inode number of sysfs within a boot: it counts up (Linux 4.14 and
// later, fs/kernfs/dir.c, __kernfs_new_node: idr_alloc_cyclic; 64 bits from 5.5 on). The directory of a module is made when the
// module is loaded, and the link "driver" of a PCI function when it is bound (drivers/base/dd.c, driver_sysfs_add). Times of sysfs
// are useless: they are those of the first lookup.
func (s *Sessions) of(device string) string {
	bound := "-"
	if pci, err := gpu.ParseDeviceName(device); err == nil {
		bound = inode(s.sysfs, path.Join("bus/pci/devices", pci.String(), "driver"))
	}
	return s.file.Release + "." + inode(s.sysfs, "module/nvidia") + "." + bound
}

// Unbroken reports whether the current session of a GPU is its first in this boot.
func (s *Sessions) Unbroken(device string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.file.First[device]
	return first != "" && first == s.of(device)
}

// inode is the inode number of a file or link itself; "-" if missing.
func inode(fsys fs.FS, name string) string {
	if st := lstat(fsys, name); st != nil {
		return strconv.FormatUint(st.Ino, 10)
	}
	return "-"
}

// lstat returns the status of a file or link itself, or nil.
func lstat(fsys fs.FS, name string) *syscall.Stat_t {
	links, ok := fsys.(fs.ReadLinkFS)
	if !ok {
		return nil
	}
	info, err := links.Lstat(name)
	if err != nil {
		return nil
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	return st
}

// Witness is a value that stays the same as long as a GPU instance exists, and differs for one created in its place; empty without
// one. The driver has a file for each instance in procfs, which disappears with the instance, also on a reset
// (open-gpu-kernel-modules 595.45.04: osRmCapUnregister in kmigmgrInvalidateGPUInstance and in gpumgrUnregisterRmCapsForMIGGI), and
// stays when no process has the GPU open. Its times are those of the first access (fs/proc/inode.c, proc_get_inode): the kernel may
// evict that inode, so a changed witness proves nothing, but an unchanged one proves that the instance is the same. Each mount of proc has
// inodes of its own (Linux 5.8 and later, "proc: allow to mount many instances of proc in one pid namespace"), and each container a mount:
// only a mount of the host's, as the chart has it, lets the next container prove what this one wrote.
func (s *Sessions) Witness(minor, gi int) string {
	if s.proc == nil {
		return ""
	}
	st := lstat(s.proc, fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d/access", minor, gi))
	if st == nil {
		return ""
	}
	return fmt.Sprintf("%d.%d.%09d", st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
}
