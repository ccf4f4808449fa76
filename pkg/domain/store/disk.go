// SPDX-License-Identifier: Apache-2.0

package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	// ErrTooLong is returned if a file is longer than the limit of a read.
	ErrTooLong = errors.New("file is too long")
	// ErrNotAFile is returned for a link, a directory or anything else but a file.
	ErrNotAFile = errors.New("not a regular file")
)

// FileSystem is the disk access that documents need.
type FileSystem interface {
	MkdirAll(path string, mode fs.FileMode) error
	// ReadDir lists the names of a directory's entries, sorted.
	ReadDir(path string) ([]string, error)
	// ReadFile reads at most limit bytes and fails if the file is longer, or not a regular file. It does not follow links.
	ReadFile(path string, limit int64) ([]byte, error)
	// WriteFile writes a file atomically, for as long as the kernel runs.
	WriteFile(path string, data []byte) error
	// WriteDurable is WriteFile for data that must survive a power loss as soon as it returns.
	WriteDurable(path string, data []byte) error
	Rename(from, to string) error
	// Remove deletes a file; a missing one is not an error.
	Remove(path string) error
	// Sweep deletes leftovers of interrupted writes and of other processes from a directory.
	Sweep(dir string) error
}

// Disk is the FileSystem of the operating system. The zero value works; the Disk of NewDisk is faster.
type Disk struct {
	spares *spares
}

// spares are removed files that can be reused. Names are unique, even across processes:
// otherwise two documents could be written into one file.
type spares struct {
	paths chan string
	owner string
	made  atomic.Uint64
}

// maxSpares bounds the number of spare files.
const maxSpares = 64

// NewDisk returns a Disk that keeps some of the files it removes, under another name, and reuses them. The more files were deleted in
// the last minutes, the longer ext4 takes to create one: it looks at each before it reuses an inode number
// (recently_deleted in the kernel's fs/ext4/ialloc.c). The next process's Sweep deletes the spare files of this one.
func NewDisk() Disk {
	return Disk{&spares{paths: make(chan string, maxSpares), owner: rand.Text()}}
}

// sparePrefix starts the names of spare files, followed by their owner.
const sparePrefix = ".spare."

// name returns a new name for a spare file next to another file.
func (s *spares) name(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf("%s%s-%d", sparePrefix, s.owner, s.made.Add(1)))
}

// temporary returns a new name for a temporary file next to another file.
func (s *spares) temporary(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%s-%d", filepath.Base(path), s.owner, s.made.Add(1)))
}

// owns reports whether a spare file is this process's.
func (s *spares) owns(path string) bool {
	return s != nil && strings.HasPrefix(filepath.Base(path), sparePrefix+s.owner+"-")
}

// MkdirAll is os.MkdirAll.
func (Disk) MkdirAll(path string, mode fs.FileMode) error { return os.MkdirAll(path, mode) }

// ReadDir lists names, sorted.
func (Disk) ReadDir(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// ReadFile reads at most limit bytes. Opening a pipe would block until a writer appears.
func (Disk) ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%w: %s is a link", ErrNotAFile, path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is %s", ErrNotAFile, path, info.Mode())
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit)
	}
	return data, nil
}

// WriteFile writes a temporary file and renames it. A failed step leaves nothing behind.
func (d Disk) WriteFile(path string, data []byte) error {
	return d.replace(path, data, func(*os.File) error { return nil })
}

// WriteDurable is WriteFile, but syncs the file before renaming it, and its directory afterwards.
func (d Disk) WriteDurable(path string, data []byte) error {
	if err := d.replace(path, data, (*os.File).Sync); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func (d Disk) replace(path string, data []byte, sync func(*os.File) error) (err error) {
	f, err := d.open(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		// A spare file may be longer. It is not truncated first: overwriting its blocks is cheaper than allocating new ones.
		err = f.Truncate(int64(len(data)))
	}
	if err == nil {
		err = sync(f)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

// open opens a temporary file next to a file: a spare one, or else a new one.
func (d Disk) open(path string) (*os.File, error) {
	if d.spares != nil {
		select {
		case spare := <-d.spares.paths:
			name, now := d.spares.temporary(path), time.Now()
			err := os.Chtimes(spare, now, now)
			if err == nil {
				err = os.Rename(spare, name)
			}
			if err == nil {
				return os.OpenFile(name, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			// Another process has swept it. It never sweeps a file that is being written, which has another name and is young.
		default:
		}
	}
	return os.CreateTemp(filepath.Dir(path), temporary(filepath.Base(path))) // mode 0600
}

// temporary is the name pattern of a file's temporary files.
func temporary(name string) string { return "." + name + ".*" }

// sweepAge protects files that another process is writing from Sweep.
const sweepAge = 10 * time.Minute

// Sweep deletes temporary files of WriteFile that are older than ten minutes, and the spare files of other processes: a running
// process can do without them.
func (d Disk) Sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, temporary("*")))
	if err != nil {
		return err
	}
	for _, path := range left {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		isSpare := strings.HasPrefix(filepath.Base(path), sparePrefix)
		if d.spares.owns(path) || !isSpare && time.Since(info.ModTime()) < sweepAge {
			continue
		}
		if err := (Disk{}).Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// Rename is os.Rename.
func (Disk) Rename(from, to string) error { return os.Rename(from, to) }

// Remove deletes a file; a missing one is not an error.
func (d Disk) Remove(path string) error {
	if d.spares != nil {
		spare := d.spares.name(path)
		if err := os.Rename(path, spare); err != nil {
			return ignoreMissing(err)
		}
		select {
		case d.spares.paths <- spare:
			return nil
		default: // there are enough
			path = spare
		}
	}
	return ignoreMissing(os.Remove(path))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
