// SPDX-License-Identifier: Apache-2.0

package driverroot

import "path/filepath"

// Auto as a driver root selects the first of the usual roots that has a driver.
const Auto = "auto"

// usualRoots are where NVIDIA drivers are installed: on the host by packages and the installer, and in a container by the
// GPU operator, which mounts that container's root there (gpu-operator, hostPaths.driverInstallDir).
var usualRoots = []string{"/", "/run/nvidia/driver"}

// Candidates lists the roots to search for a driver, in order. root is a path on the host; mounted is where this process
// sees it, empty if at the same path. With Auto, mounted is where this process sees the host's /.
func Candidates(root, mounted string) []Root {
	if root != Auto {
		if mounted == "" {
			mounted = root
		}
		return []Root{{Host: filepath.Clean(root), Here: filepath.Clean(mounted)}}
	}
	roots := make([]Root, len(usualRoots))
	for i, usual := range usualRoots {
		roots[i] = Root{Host: usual, Here: filepath.Join("/", mounted, usual)}
	}
	return roots
}

// Here lists roots as this process sees them.
func Here(roots []Root) []string {
	here := make([]string, len(roots))
	for i, r := range roots {
		here[i] = r.Here
	}
	return here
}
