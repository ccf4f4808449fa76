// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"path/filepath"
	"testing"
)

// The container toolkit knows the directories of distributions. It finds others in the host's /etc/ld.so.cache, which a pod
// with the host's /usr does not see: there it needs the directory.
func TestRoot_NVML(t *testing.T) {
	tests := map[string]struct {
		files []string
		want  string   // below the root
		paths []string // likewise
	}{
		"distribution":        {[]string{"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1.2", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"}, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", nil},
		"Red Hat":             {[]string{"usr/lib64/libnvidia-ml.so.580.1.2", "usr/lib64/libnvidia-ml.so.1"}, "usr/lib64/libnvidia-ml.so.1", nil},
		"on ARM":              {[]string{"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.1.2", "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"}, "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", nil},
		"Arch Linux":          {[]string{"usr/lib/libnvidia-ml.so.580.1.2", "usr/lib/libnvidia-ml.so.1"}, "usr/lib/libnvidia-ml.so.1", []string{"usr/lib"}},
		"mounted by platform": {[]string{"usr/local/nvidia/lib64/libnvidia-ml.so.580.1.2", "usr/local/nvidia/lib64/libnvidia-ml.so.1", "usr/lib/libnvidia-ml.so.1"}, "usr/local/nvidia/lib64/libnvidia-ml.so.1", []string{"usr/local/nvidia/lib64"}},
		"links alone":         {[]string{"usr/lib/libnvidia-ml.so.1"}, "", nil},
		"nothing":             {nil, "", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			here, err := filepath.EvalSymlinks(t.TempDir())
			must(t, err)
			lay(t, here, tt.files...)
			root := Root{Host: "/", Here: here}
			path, found := root.NVML()
			if found != (tt.want != "") || found && path != filepath.Join(here, tt.want) {
				t.Errorf("got %q, %t, want %q", path, found, tt.want)
			}
			var want []string
			for _, dir := range tt.paths {
				want = append(want, filepath.Join(here, dir))
			}
			equal(t, "search paths", want, root.LibrarySearchPaths())
		})
	}
}
