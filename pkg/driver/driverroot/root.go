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

// Devices is the root whose /dev contains the driver's device nodes: the driver root if it has a /dev, else the host's, as
// on Container-Optimized OS, which installs the driver in /home/kubernetes/bin/nvidia. NVIDIA's DRA driver (root.go,
// getDevRoot) and nvidia-container-toolkit (nvidia-ctk-installer, --dev-root) do the same.
func (r Root) Devices() Root {
	if hasEntries(filepath.Join(r.Here, "dev")) {
		return r
	}
	return r.machine()
}

// machine is the host's root. This process sees it above the driver root, if that has the same path below it; otherwise
// the host's device nodes are those of this process, as in NVIDIA's DRA driver.
func (r Root) machine() Root {
	if above, found := strings.CutSuffix(filepath.Clean(r.Here), filepath.Clean(r.Host)); found {
		if here := cmp.Or(above, "/"); hasEntries(filepath.Join(here, "dev")) {
			return Root{Host: "/", Here: here}
		}
	}
	return Root{Host: "/", Here: "/"}
}

// hasEntries reports whether a directory exists and is not empty.
func hasEntries(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(1)
	return err == nil && len(names) > 0
}

// programDirs are the directories of programs below a driver root: of packages and the installer, of GKE's driver on
// Ubuntu, of Flatcar and OpenShift, of Container-Optimized OS.
var programDirs = []string{"/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin", "/opt/bin", "/bin", "/usr/sbin", "/sbin"}

// Find returns the path of a driver program below its root, such as /usr/bin/nvidia-smi.
func (r Root) Find(name string) (path string, found bool) {
	for _, dir := range programDirs {
		path := filepath.Join(dir, name)
		// It may be a link that resolves only within the root (Debian's /etc/alternatives).
		if info, err := os.Lstat(filepath.Join(r.Here, path)); err == nil && !info.IsDir() {
			return path, true
		}
	}
	return "", false
}

// libraryDirs are the directories of libraries below a driver root.
var libraryDirs = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	"usr/local/nvidia/lib64", "usr/lib", "lib",
}

// LibraryPath lists the directories of the driver's libraries in the format of LD_LIBRARY_PATH, as this process sees them.
// It omits directories without them, whose C library need not match the loader.
func (r Root) LibraryPath() string {
	return strings.Join(r.withNVML(slices.DeleteFunc(r.join(libraryDirs), func(dir string) bool {
		_, err := os.Lstat(filepath.Join(dir, LibraryName))
		return err != nil
	})), ":")
}

// withNVML puts the directory of NVML's file first. Where programs are not entered into the root, its links may lead out of
// it: Debian's package has the file in nvidia/current and reaches it by /etc/alternatives.
func (r Root) withNVML(dirs []string) []string {
	path, found := r.NVML()
	if !found {
		return dirs
	}
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	if dir := filepath.Dir(path); !slices.Contains(dirs, dir) {
		return append([]string{dir}, dirs...)
	}
	return dirs
}

// ProgramPath lists the directories of the driver's programs in the format of PATH, as this process sees them.
func (r Root) ProgramPath() string { return strings.Join(r.join(programDirs), ":") }

// join returns directories of the root as this process sees them.
func (r Root) join(dirs []string) []string {
	joined := make([]string, len(dirs))
	for i, dir := range dirs {
		joined[i] = filepath.Join(r.Here, dir)
	}
	return joined
}

// Versions lists the driver releases whose management library, libnvidia-ml.so.<release>, is below the root, sorted by
// name.
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
