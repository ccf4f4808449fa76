// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestProcessesRoot(t *testing.T) {
	empty, linked, other := t.TempDir(), t.TempDir(), t.TempDir()
	for root, target := range map[string]string{linked: "/etc/alternatives/nowhere", other: "/bin/true"} {
		program := filepath.Join(root, "usr/bin", controlProgram)
		if err := errors.Join(os.MkdirAll(filepath.Dir(program), 0o700), os.Symlink(target, program)); err != nil {
			t.Fatal(err)
		}
	}
	if got := (Processes{DriverRoots: []string{empty, linked, other}}).root(); got != linked {
		t.Errorf("got %s, want %s", got, linked)
	}
	if got := (Processes{DriverRoots: []string{empty, t.TempDir()}}).root(); got != empty {
		t.Errorf("got %s, want the first where none has it, for the error to name", got)
	}
}

func TestDiskRemoveDirs(t *testing.T) {
	base, one, two := t.TempDir(), t.TempDir(), t.TempDir()
	p := pathsOf(filepath.Join(base, "mps"), "gpu-0000-1b-00-0")
	for _, root := range []string{"", one, two} {
		for _, dir := range []string{p.pipe, p.log} {
			if err := os.MkdirAll(filepath.Join("/", root, dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := (Disk{DriverRoots: []string{"/", one, two}}).RemoveDirs(p); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{p.dir, filepath.Join(one, base, "mps"), filepath.Join(two, base, "mps")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left (%v)", path, err)
		}
	}
}
