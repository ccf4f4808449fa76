// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"path/filepath"
)

// AutoRoot in place of a driver's root stands for the first of the usual ones that has a driver.
const AutoRoot = "auto"

// usualRoots are where NVIDIA's drivers are put: on the host itself by packages and the installer, and in a container by
// the GPU operator, which mounts that container's root there (gpu-operator, hostPaths.driverInstallDir).
var usualRoots = []string{"/", "/run/nvidia/driver"}

// Root is a folder with a driver's files.
type Root struct {
	// Host is the folder on the host, as container runtimes see it.
	Host string
	// Here is the same folder as this process sees it.
	Here string
}

// Roots are the folders to look for a driver in, in this order. root is where it is on the host, and mounted where this
// process sees that folder, empty if at the same path. With AutoRoot, mounted is where this process sees the host's /.
func Roots(root, mounted string) []Root {
	if root != AutoRoot {
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
