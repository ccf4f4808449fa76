package records

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Disk is the FileSystem of the operating system.
type Disk struct{}

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

// ReadFile reads at most limit bytes.
func (Disk) ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, limit)
	}
	return data, nil
}

// WriteFile writes beside the file, syncs and renames. Nothing stays behind where a step fails.
func (Disk) WriteFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), temporary(filepath.Base(path))) // mode 0600
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
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// temporary is the pattern of the names of a file's temporary files.
func temporary(name string) string { return "." + name + ".*" }

// sweepAge keeps Sweep off the files that another process is writing right now.
const sweepAge = 10 * time.Minute

// Sweep deletes temporary files of WriteFile that are older than ten minutes.
func (Disk) Sweep(dir string) error {
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
		if time.Since(info.ModTime()) < sweepAge {
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
func (Disk) Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
