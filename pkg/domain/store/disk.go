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
	// ErrTooLong is a file longer than the limit of a read.
	ErrTooLong = errors.New("file is too long")
	// ErrNotAFile is a link, a directory or something else in place of a file.
	ErrNotAFile = errors.New("not a regular file")
)

// FileSystem is what documents need of a disk.
type FileSystem interface {
	MkdirAll(path string, mode fs.FileMode) error
	// ReadDir lists the names of a directory's entries, sorted.
	ReadDir(path string) ([]string, error)
	// ReadFile reads at most limit bytes and fails if the file is longer, or is none. It follows no link.
	ReadFile(path string, limit int64) ([]byte, error)
	// WriteFile makes a file appear with its whole content, or not at all, for as long as the kernel runs.
	WriteFile(path string, data []byte) error
	// WriteDurable is WriteFile for what has to outlive a power cut as soon as it returns.
	WriteDurable(path string, data []byte) error
	Rename(from, to string) error
	// Remove deletes a file; a missing one is no error.
	Remove(path string) error
	// Sweep deletes what interrupted writes and other processes have left in a directory.
	Sweep(dir string) error
}

// Disk is the FileSystem of the operating system. The zero value works; one of NewDisk is faster.
type Disk struct {
	spares *spares
}

// spares are files that were removed and can be written again. No two ever have one name, also not those of two
// processes: else two documents could be written into one file.
type spares struct {
	paths chan string
	owner string
	made  atomic.Uint64
}

// maxSpares bounds the removed files that are kept.
const maxSpares = 64

// NewDisk makes a Disk that keeps some of the files it removes, under another name, and writes them again. Making a
// file takes ext4 the longer the more files were deleted in the last minutes: it looks at each before it uses a number
// again (recently_deleted in the kernel's fs/ext4/ialloc.c). What this process leaves behind, the next one's Sweep deletes.
func NewDisk() Disk {
	return Disk{&spares{paths: make(chan string, maxSpares), owner: rand.Text()}}
}

// sparePrefix begins the names of spare files, before their owner.
const sparePrefix = ".spare."

// name is a new one for a file next to another.
func (s *spares) name(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf("%s%s-%d", sparePrefix, s.owner, s.made.Add(1)))
}

// temporary is a new name for a temporary file next to another.
func (s *spares) temporary(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%s-%d", filepath.Base(path), s.owner, s.made.Add(1)))
}

// owns reports whether a spare file is this process's.
func (s *spares) owns(path string) bool {
	return s != nil && strings.HasPrefix(filepath.Base(path), sparePrefix+s.owner+"-")
}

// MkdirAll as os.MkdirAll.
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

// ReadFile reads at most limit bytes. To open a pipe would wait for who writes it.
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

// WriteFile writes next to the file and renames. Nothing stays behind where a step fails.
func (d Disk) WriteFile(path string, data []byte) error {
	return d.replace(path, data, func(*os.File) error { return nil })
}

// WriteDurable is WriteFile that syncs the file before it is renamed, and its directory after that.
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
		// A spare file may be longer. It is not emptied first: writing over its blocks is cheaper than getting new ones.
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
			name := d.spares.temporary(path)
			if err := os.Rename(spare, name); err == nil {
				return os.OpenFile(name, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			// Another process has swept it. It sweeps none that is being written, which has another name.
		default:
		}
	}
	return os.CreateTemp(filepath.Dir(path), temporary(filepath.Base(path))) // mode 0600
}

// temporary is the pattern of the names of a file's temporary files.
func temporary(name string) string { return "." + name + ".*" }

// sweepAge keeps Sweep off the files that another process is writing right now.
const sweepAge = 10 * time.Minute

// Sweep deletes temporary files of WriteFile that are older than ten minutes, and the spare files of other processes: one
// that still runs does without.
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

// Rename as os.Rename.
func (Disk) Rename(from, to string) error { return os.Rename(from, to) }

// Remove deletes a file that may be missing.
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
