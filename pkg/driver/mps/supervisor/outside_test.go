// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// GKE's driver lies in a root without a dev and a C library: nothing can run with it as its root.
func TestSandbox_RootWithoutDev(t *testing.T) {
	for _, dev := range []bool{false, true} {
		root := t.TempDir()
		files := []string{"bin/" + controlProgram, "lib64/libnvidia-ml.so.1"}
		if dev {
			files = append(files, "dev/nvidiactl")
		}
		for _, f := range files {
			path := filepath.Join(root, f)
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			must(t, os.WriteFile(path, nil, 0o700))
		}
		s := Processes{DriverRoots: []string{root}}.sandbox(Daemon{UUID: "GPU-1"}, "-f")
		env := strings.Join(s.Env, "\n")
		if dev {
			if s.Root != root || s.Search != "" || strings.Contains(env, "LD_LIBRARY_PATH") {
				t.Errorf("with a dev: got %+v, want the driver's root", s)
			}
			continue
		}
		if s.Root != "/" || !strings.Contains(env, "LD_LIBRARY_PATH="+root+"/lib64") || !strings.Contains(env, "PATH="+root+"/usr/bin:") {
			t.Errorf("without a dev: got %+v, want the supervisor's own root and the driver's libraries", s)
		}
		if path, err := find(s.Program, s.Search); err != nil || path != filepath.Join(root, "bin", controlProgram) {
			t.Errorf("without a dev: found %q, %v", path, err)
		}
	}
}
