// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFileSet_Check(t *testing.T) {
	later := func() time.Time { return time.Now().Add(time.Minute) }
	tests := map[string]struct {
		change func(dir string) error
		want   error
	}{
		"nothing":      {func(string) error { return nil }, nil},
		"file removed": {func(dir string) error { return os.Remove(filepath.Join(dir, "lib64/libcuda.so")) }, fs.ErrNotExist},
		"file replaced": {func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "lib64/new"), nil, 0o600),
				os.Rename(filepath.Join(dir, "lib64/new"), filepath.Join(dir, "lib64/libcuda.so")))
		}, nil},
		"other file created": {func(dir string) error { return os.WriteFile(filepath.Join(dir, "lib64/other"), nil, 0o600) }, nil},
		"directory removed":  {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "bin")) }, fs.ErrNotExist},
		"directory replaced by an empty one": {func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "lib64"), filepath.Join(dir, "old")), os.Mkdir(filepath.Join(dir, "lib64"), 0o700))
		}, fs.ErrNotExist},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			lay(t, dir, "lib64/libcuda.so", "lib64/libnvidia-ml.so", "bin/nvidia-smi")
			s := newFileSet([]string{filepath.Join(dir, "lib64/libcuda.so"), filepath.Join(dir, "lib64/libnvidia-ml.so"), filepath.Join(dir, "bin/nvidia-smi")})
			if err := s.check(later()); err != nil || s.stamps == nil {
				t.Fatalf("before: %v, stamps %v", err, s.stamps)
			}
			<-time.After(50 * time.Millisecond) // longer than a tick of the kernel's clock: what happens within one has one time
			must(t, tt.change(dir))
			if err := s.check(later()); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// A directory that has just changed may change again without another stamp.
func TestFileSet_JustChanged(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, "libcuda.so")
	s := newFileSet([]string{filepath.Join(dir, "libcuda.so")})
	if err := s.check(time.Now()); err != nil || s.stamps != nil {
		t.Errorf("got %v and stamps %v, want none", err, s.stamps)
	}
}

func lay(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, name := range files {
		path := filepath.Join(dir, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)))
	}
}
