// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/store"
)

// presenceFile is locked by every plugin that runs on a node, so that one that leaves knows whether it is the last.
const presenceFile = "running.lock"

// presence is the mark of a plugin that runs. The kernel takes it away when the plugin dies.
type presence struct {
	file *os.File
}

// enter marks this plugin as running. It waits for one that is taking its files away.
func enter(dir string) (*presence, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the plugin's folder: %w", err)
	}
	file, err := store.LockFile(filepath.Join(dir, presenceFile), syscall.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("mark the plugin as running: %w", err)
	}
	return &presence{file}, nil
}

// alone tells whether no other plugin runs, and if so keeps any from starting until leave.
func (p *presence) alone() bool {
	return store.Flock(p.file, syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// leave takes the mark away.
func (p *presence) leave() { _ = p.file.Close() }
