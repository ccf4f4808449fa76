// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/klog/v2"

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

// enter is acquire for a plugin that starts. If no other is running, it first removes the sockets of those that died with their node and
// have another pod's UID in their names: the kubelet tries to register each socket that it finds, again and again
// (pkg/kubelet/pluginmanager/reconciler).
func enter(ctx context.Context, c *Config) (*lease, error) {
	first, err := acquire(c.pluginDir())
	if err != nil {
		return nil, err
	}
	var swept error
	if first.alone() {
		swept = removeDeadSockets(ctx, c, c.DriverName)
	}
	first.release() // alone keeps others from starting, and may have lost the lock if there are others (flock(2))
	if swept != nil {
		klog.FromContext(ctx).Error(swept, "Removing the sockets of dead plugins failed", "dir", c.pluginDir())
	}
	return acquire(c.pluginDir())
}

// alone reports whether no other plugin is running, and if so prevents others from starting until release.
func (l *lease) alone() bool {
	return store.Flock(l.file, syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// release ends the lease.
func (l *lease) release() { _ = l.file.Close() }
