// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"os"
	"path/filepath"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
)

// LibraryName is the file name of NVML by which programs load it.
const LibraryName = "libnvidia-ml.so.1"

// NVML is the path of NVML below the root, as this process sees it.
func (r Root) NVML() (path string, found bool) {
	if path, found := r.listedNVML(); found {
		return path, true
	}
	if dir, found := r.libraryDir(); found {
		return filepath.Join(dir, LibraryName), true
	}
	return "", false
}

// LibrarySearchPaths are the directories in which NVIDIA's container toolkit has to search for the driver's libraries; nil if it
// finds them on its own. It knows the directories of distributions and reads the host's ld.so.cache, which is in /etc and so
// missing in a pod that sees only the host's /usr.
func (r Root) LibrarySearchPaths() []string {
	if _, found := r.listedNVML(); found {
		return nil
	}
	if dir, found := r.libraryDir(); found {
		return []string{dir}
	}
	return nil
}

// listedNVML is the path of NVML found by the toolkit.
func (r Root) listedNVML() (path string, found bool) {
	paths, err := lookup.NewLibraryLocator(lookup.WithRoot(r.Here), lookup.WithLogger(silent{})).Locate(LibraryName)
	if err != nil || len(paths) == 0 {
		return "", false
	}
	return filepath.Clean(paths[0]), true
}

// libraryDir is the first directory that has NVML and the file of its release. One with only links to libraries elsewhere does not:
// they lead out of a root other than /.
func (r Root) libraryDir() (dir string, found bool) {
	for _, dir := range r.join(libraryDirs) {
		releases, err := filepath.Glob(filepath.Join(dir, "libnvidia-ml.so.*.*"))
		if err != nil || len(releases) == 0 {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, LibraryName)); err == nil {
			return dir, true
		}
	}
	return "", false
}

// silent keeps the toolkit's search out of the log.
type silent struct{}

func (silent) Debugf(string, ...any)   {}
func (silent) Infof(string, ...any)    {}
func (silent) Warningf(string, ...any) {}
func (silent) Errorf(string, ...any)   {}
func (silent) Tracef(string, ...any)   {}
