// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Root is the root of a driver's files.
type Root struct {
	// Host is the directory on the host, as container runtimes see it.
	Host string
	// Here is the same directory as this process sees it.
	Here string
}

// Devices is the root that has the driver's device nodes below its /dev: the driver's own where it has a /dev, and the
// host's where it has none, as on Container-Optimized OS, whose driver lies in /home/kubernetes/bin/nvidia. NVIDIA's DRA
// driver (root.go, getDevRoot) and nvidia-container-toolkit (nvidia-ctk-installer, --dev-root) do the same.
func (r Root) Devices() Root {
	if hasEntries(filepath.Join(r.Here, "dev")) {
		return r
	}
	return r.machine()
}

// machine is the host's own root. Where this process sees it follows from where it sees the driver's root, if that has
// the same path below it; else the host's device nodes are those of this process, as they are for NVIDIA's DRA driver.
func (r Root) machine() Root {
	if above, found := strings.CutSuffix(filepath.Clean(r.Here), filepath.Clean(r.Host)); found {
		if here := cmp.Or(above, "/"); hasEntries(filepath.Join(here, "dev")) {
			return Root{Host: "/", Here: here}
		}
	}
	return Root{Host: "/", Here: "/"}
}

// hasEntries reports whether a directory exists and holds something.
func hasEntries(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(1)
	return err == nil && len(names) > 0
}

// programDirs are where drivers put their programs, below their root: packages and the installer, GKE's driver on Ubuntu,
// Flatcar's and OpenShift's, Container-Optimized OS's.
var programDirs = []string{"/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin", "/opt/bin", "/bin", "/usr/sbin", "/sbin"}

// Find gives the path of a program of the driver below its root, such as /usr/bin/nvidia-smi.
func (r Root) Find(name string) (path string, found bool) {
	for _, dir := range programDirs {
		path := filepath.Join(dir, name)
		// It may be a link that leads somewhere only from the root (Debian's /etc/alternatives).
		if info, err := os.Lstat(filepath.Join(r.Here, path)); err == nil && !info.IsDir() {
			return path, true
		}
	}
	return "", false
}

// libraryDirs are where drivers put their libraries, below their root.
var libraryDirs = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	"usr/local/nvidia/lib64", "usr/lib", "lib",
}

// libraries lists the directories of the root that hold a file, as this process sees them.
func (r Root) libraries(holding string) []string {
	var dirs []string
	for _, dir := range libraryDirs {
		path := filepath.Join(r.Here, dir)
		if _, err := os.Lstat(filepath.Join(path, holding)); err == nil {
			dirs = append(dirs, path)
		}
	}
	return dirs
}

// LibraryPath lists the directories of the driver's libraries, as this process sees them and as LD_LIBRARY_PATH wants
// them. Those that hold none of the driver's are left out: a C library in them need not fit the loader.
func (r Root) LibraryPath() string {
	return strings.Join(r.libraries("libnvidia-ml.so.1"), ":")
}

// ProgramPath lists the directories of the driver's programs, as this process sees them and as PATH wants them.
func (r Root) ProgramPath() string {
	dirs := make([]string, len(programDirs))
	for i, dir := range programDirs {
		dirs[i] = filepath.Join(r.Here, dir)
	}
	return strings.Join(dirs, ":")
}

// Versions lists the releases of the driver whose management library lies below the root, in the order of their names.
// Installations name it libnvidia-ml.so.<release>.
func (r Root) Versions() ([]string, error) {
	var found []string
	for _, dir := range libraryDirs {
		files, err := filepath.Glob(filepath.Join(r.Here, dir, "libnvidia-ml.so.*.*"))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			found = append(found, strings.TrimPrefix(filepath.Base(f), "libnvidia-ml.so."))
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}
