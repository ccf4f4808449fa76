// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// lease marks a running plugin, so that one that ends knows whether it is the last. The kernel releases it when the plugin dies.
type lease struct {
	file *os.File
}

// acquire marks this plugin as running. It waits for a plugin that is removing its files.
func acquire(dir string) (*lease, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("create the plugin's directory: %w", err)
	}
	file, err := store.LockFile(filepath.Join(dir, names.Running), syscall.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("mark the plugin as running: %w", err)
	}
	return &lease{file}, nil
}

// alone reports whether no other plugin is running, and if so prevents others from starting until release.
func (l *lease) alone() bool {
	return store.Flock(l.file, syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// release ends the lease.
func (l *lease) release() { _ = l.file.Close() }
