// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// LockFile opens a file, creating it if necessary, and locks it as flock(2) does: syscall.LOCK_SH or LOCK_EX, with
// LOCK_NB to fail with EWOULDBLOCK instead of waiting. Closing the file, or the end of the process, releases the lock.
func LockFile(path string, how int) (*os.File, error) {
	path = filepath.Clean(path)
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := Flock(file, how); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		if IsAt(file, path) {
			return file, nil
		}
		_ = file.Close() // the previous owner of the lock has deleted it meanwhile
	}
}

// Flock locks an open file, retrying when a signal interrupts it.
func Flock(file *os.File, how int) error {
	for {
		if err := syscall.Flock(int(file.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// IsAt reports whether an open file is still the one at its path: a lock on a deleted file excludes no one.
func IsAt(file *os.File, path string) bool {
	mine, errMine := file.Stat()
	there, errThere := os.Lstat(path)
	return errMine == nil && errThere == nil && os.SameFile(mine, there)
}
