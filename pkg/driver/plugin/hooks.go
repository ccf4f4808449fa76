// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/cdi/hook"
)

// installHook installs NVIDIA's hook program where container runtimes can run it and returns its path.
//
// runc runs createContainer hooks in the container's namespaces before it changes the root (runc, rootfs_linux.go,
// prepareRootfs), so in a pod with a user namespace it runs them as a host user without any rights. The kubelet makes its own
// directories accessible to root only (kubelet.go, setupDataDirs, 0750), so a hook below them cannot be run there. The records of
// claims stay in those. If programs cannot be run in the hook directory, as in /var on Container-Optimized OS, the
// plugin's own directory serves all pods without user namespaces.
func installHook(ctx context.Context, config *Config) (string, error) {
	if dir, err := openHookDir(config); err != nil {
		klog.FromContext(ctx).Error(err, "Pods with user namespaces cannot have GPUs: installing the hook beside the records of claims",
			"directory", config.nodeDir())
	} else if dir != "" {
		return hook.Install(dir, hook.NVIDIA)
	}
	return hook.Install(config.nodeDir(), hook.NVIDIA) // in that of a name, NVIDIA's driver may have its own
}

// openHookDir creates the directory for hooks, which all users may enter; empty if none is configured.
func openHookDir(config *Config) (string, error) {
	if config.HookDir == "" {
		return "", nil
	}
	dir := config.hookDir()
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // users in user namespaces run its programs
		return "", fmt.Errorf("create the directory for CDI hooks: %w", err)
	}
	for _, d := range []string{config.HookDir, dir} { // whatever the umask
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // as above
			return "", fmt.Errorf("let all enter the directory for CDI hooks: %w", err)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "", fmt.Errorf("check the directory for CDI hooks: %w", err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return "", fmt.Errorf("no program can be run in %s: it is mounted noexec", dir)
	}
	return dir, nil
}

// hookDir is the directory of this driver's hooks.
func (c *Config) hookDir() string { return filepath.Join(c.HookDir, c.DriverName) }
