// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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
	// Sweep deletes leftovers of interrupted writes from a directory.
	Sweep(dir string) error
}

// Disk is the FileSystem of the operating system.
type Disk struct{}

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

// WriteFile writes a temporary file and renames it.
func (Disk) WriteFile(path string, data []byte) error {
	return Replace(path, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// WriteDurable is WriteFile, but syncs the file before renaming it, and its directory afterwards.
func (Disk) WriteDurable(path string, data []byte) error {
	err := Replace(path, func(f *os.File) error {
		if _, err := f.Write(data); err != nil {
			return err
		}
		return f.Sync()
	})
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// Replace replaces a file atomically by one that fill writes, with mode 0600 unless fill changes it. A failed step leaves nothing
// behind.
func Replace(path string, fill func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary(filepath.Base(path)))
	if err != nil {
		return err
	}
	if err = errors.Join(fill(f), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// temporary is the name pattern of a file's temporary files.
func temporary(name string) string { return "." + name + ".*" }

// sweepAge protects files that another process is writing from Sweep.
const sweepAge = 10 * time.Minute

// Sweep deletes temporary files of WriteFile that are older than ten minutes.
func (Disk) Sweep(dir string) error { return RemoveOld(filepath.Join(dir, temporary("*"))) }

// RemoveOld deletes the files of a pattern, as of filepath.Glob, that are older than ten minutes.
func RemoveOld(pattern string) error {
	left, err := filepath.Glob(pattern)
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
		if time.Since(info.ModTime()) < sweepAge {
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
func (Disk) Remove(path string) error { return ignoreMissing(os.Remove(path)) }

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
