// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Fill writes a file into a directory until the file system is full, and returns its path, also with an error. Removing the
// file is what ends it.
func Fill(dir string) (path string, err error) {
	path = filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		return path, fmt.Errorf("fill a disk: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			return path, nil
		} else if err != nil {
			return path, fmt.Errorf("fill a disk: %w", err)
		}
	}
}
