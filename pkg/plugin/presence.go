// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
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
	path := filepath.Join(dir, presenceFile)
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("mark the plugin as running: %w", err)
		}
		if err := flock(file, syscall.LOCK_SH); err != nil {
			return nil, errors.Join(fmt.Errorf("mark the plugin as running: lock %s: %w", path, err), file.Close())
		}
		// One that left may have deleted the file between the two steps.
		mine, errMine := file.Stat()
		there, errThere := os.Lstat(path)
		if errMine == nil && errThere == nil && os.SameFile(mine, there) {
			return &presence{file}, nil
		}
		_ = file.Close()
	}
}

// alone tells whether no other plugin runs, and if so keeps any from starting until leave.
func (p *presence) alone() bool {
	return flock(p.file, syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// leave takes the mark away.
func (p *presence) leave() { _ = p.file.Close() }

// flock waits for a lock, however often a signal interrupts it.
func flock(file *os.File, how int) error {
	for {
		if err := syscall.Flock(int(file.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
