// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cell is one piece of state that changes as a whole, in memory or in a file that several processes share. Values are immutable: an
// update creates a new one, so that readers keep theirs.
type cell[T any] struct {
	path   string // empty: in memory
	stat   func() (fileID, error)
	clone  func(*T) *T
	decode func([]byte) (*T, error)
	// before and after, if set, keep external state in sync with the value: they run before and after the new value is visible. An
	// error from before stops the update. Other processes wait meanwhile.
	before func(old, next *T) error
	after  func(old, next *T)
	// stale, if set, reports that the value is out of date, and settle updates it.
	stale  func(*T) bool
	settle func(*T)

	mu  sync.Mutex // one update or re-read at a time in this process
	cur atomic.Pointer[version[T]]
}

// version is a value and the identity of the file it came from.
type version[T any] struct {
	value *T
	file  fileID
}

// fileID distinguishes versions of a file. Every version is a new file with a modification time of its own.
type fileID struct {
	ino          uint64
	size         int64
	mtime, mnsec int64
}

// newCell creates a cell in memory.
func newCell[T any](value *T, clone func(*T) *T) *cell[T] {
	c := &cell[T]{clone: clone}
	c.cur.Store(&version[T]{value: value})
	return c
}

// openCell creates a cell of a file; the file is read when first asked for.
func openCell[T any](path string, clone func(*T) *T, decode func([]byte) (*T, error)) *cell[T] {
	return &cell[T]{path: path, stat: statter(path), clone: clone, decode: decode}
}

// load returns the current value: the cached one unless the file has changed.
func (c *cell[T]) load() (*T, error) {
	value, err := c.present()
	if err != nil || c.stale == nil || !c.stale(value) {
		return value, err
	}
	value = c.clone(value) // the next update removes it from the file
	c.settle(value)
	return value, nil
}

// present returns the last written value.
func (c *cell[T]) present() (*T, error) {
	if v := c.cur.Load(); v != nil {
		if c.path == "" {
			return v.value, nil
		}
		id, err := c.stat()
		if err != nil {
			return nil, err
		}
		if id == v.file {
			return v.value, nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// read reads the file if it differs from the cached one. mu is held.
func (c *cell[T]) read() (*T, error) {
	id, err := c.stat()
	if err != nil {
		return nil, err
	}
	for {
		if v := c.cur.Load(); v != nil && v.file == id {
			return v.value, nil
		}
		data, readErr := os.ReadFile(c.path)
		// A writer writes into a file that is not the current version. If the file that was read is still the current version, it
		// was not written meanwhile; otherwise the data may be garbage.
		now, err := c.stat()
		if err != nil {
			return nil, err
		}
		if now != id {
			id = now
			continue
		}
		if readErr != nil {
			return nil, fmt.Errorf("read simulated state: %w", readErr)
		}
		value, err := c.decode(data)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", c.path, err)
		}
		c.cur.Store(&version[T]{value: value, file: id})
		return value, nil
	}
}

// update changes the value: change gets a copy, and its errors leave the value unchanged. Updates of all processes are serialised.
func (c *cell[T]) update(change func(*T) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.path == "" {
		next := c.clone(c.cur.Load().value)
		if err := change(next); err != nil {
			return err
		}
		c.cur.Store(&version[T]{value: next})
		return nil
	}
	unlock, err := lockFile(c.path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	now, err := c.read()
	if err != nil {
		return err
	}
	next := c.clone(now)
	if c.settle != nil {
		c.settle(next)
	}
	if err := change(next); err != nil {
		return err
	}
	if c.before != nil {
		if err := c.before(now, next); err != nil {
			return err
		}
	}
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode simulated state: %w", err)
	}
	var last fileID
	if v := c.cur.Load(); v != nil {
		last = v.file
	}
	id, err := replaceFile(c.path, data, last)
	if err != nil {
		return fmt.Errorf("write simulated state: %w", err)
	}
	c.cur.Store(&version[T]{value: next, file: id})
	if c.after != nil {
		c.after(now, next)
	}
	return nil
}

// statFile returns the identity of a file.
func statFile(path string) (fileID, error) {
	return statter(path)()
}

// sysFstatat is the number of a system call, which package syscall does not have everywhere; 0 elsewhere.
var sysFstatat = map[string]uintptr{"amd64": 262, "arm64": 79}[runtime.GOARCH]

// atCWD is AT_FDCWD: paths that are not absolute begin at the current directory.
const atCWD = ^uintptr(99)

// statter returns a function that returns the identity of a file. It is part of every NVML call, so it allocates nothing.
func statter(path string) func() (fileID, error) {
	name, err := syscall.BytePtrFromString(path)
	return func() (fileID, error) {
		var st syscall.Stat_t
		errno := syscall.ENOSYS
		if err == nil && sysFstatat != 0 {
			_, _, errno = syscall.Syscall6(sysFstatat,
				atCWD, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&st)), 0, 0, 0) //nolint:gosec // as in package syscall
		}
		if errno == syscall.ENOSYS {
			if err := syscall.Stat(path, &st); err != nil {
				return fileID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
			}
		} else if errno != 0 {
			return fileID{}, &fs.PathError{Op: "stat", Path: path, Err: errno}
		}
		return fileID{ino: st.Ino, size: st.Size, mtime: st.Mtim.Sec, mnsec: st.Mtim.Nsec}, nil
	}
}

// replaceFile makes data the next version of a file whose current one has the identity last. The caller holds the lock. There are
// always two files, the current version and a spare one that becomes the next, which are exchanged atomically. Creating and
// removing files instead, or renaming over one, takes ext4 ten times as long.
func replaceFile(path string, data []byte, last fileID) (fileID, error) {
	spare := path + ".spare"
	if err := writePadded(spare, data); err != nil {
		return fileID{}, err
	}
	// The same two files alternate and clocks are coarse, so the modification time is advanced explicitly.
	when := time.Now()
	if before := time.Unix(last.mtime, last.mnsec); !when.After(before) {
		when = before.Add(time.Nanosecond)
	}
	if err := os.Chtimes(spare, when, when); err != nil {
		return fileID{}, err
	}
	id, err := statFile(spare)
	if err != nil {
		return fileID{}, err
	}
	if unix.Renameat2(unix.AT_FDCWD, spare, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE) == nil {
		return id, nil
	}
	return id, os.Rename(spare, path) // the first version, or a file system without exchange
}

// padding is the multiple to which versions are padded with blanks, which JSON ignores. Changing the size of a file costs more.
const padding = 1024

// writePadded overwrites a file with padded data.
func writePadded(path string, data []byte) error {
	for len(data)%padding != 0 {
		data = append(data, ' ')
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // every process of the node reads the state
	if err != nil {
		return err
	}
	defer f.Close() // write errors are reported above
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() > int64(len(data)) {
		if err := f.Truncate(int64(len(data))); err != nil {
			return err
		}
	}
	_, err = f.WriteAt(data, 0)
	return err
}

// lockFile waits for the lock between processes, and returns a function that releases it.
func lockFile(path string) (unlock func(), err error) {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CREAT|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	for {
		err = syscall.Flock(fd, syscall.LOCK_EX)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		_ = syscall.Close(fd)
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return func() { _ = syscall.Close(fd) }, nil // closing releases the lock; nothing was written
}
