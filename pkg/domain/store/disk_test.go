// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDiskWriteFile_OnePrivateFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	for _, content := range []string{"first, long", "second"} {
		if err := (Disk{}).WriteFile(path, []byte(content)); err != nil {
			t.Fatalf("WriteFile: %v", err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("content: got %q, %v, want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	must(t, err)
	if got, want := info.Mode(), fs.FileMode(0o600); got != want {
		t.Errorf("mode: got %v, want %v", got, want)
	}
	if diff := cmp.Diff([]string{"a.json"}, listAll(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestDiskWriteFile_RenameFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	must(t, os.MkdirAll(filepath.Join(path, "in-the-way"), 0o700))
	if err := (Disk{}).WriteFile(path, []byte("x")); err == nil {
		t.Fatal("WriteFile over a directory: want an error")
	}
	if diff := cmp.Diff([]string{"a.json"}, readDir(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestDiskWriteFile_MissingDirectory(t *testing.T) {
	err := Disk{}.WriteFile(filepath.Join(t.TempDir(), "no", "a.json"), []byte("x"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
}

// mountTiny gives a file system of two pages, or skips the test.
func mountTiny(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=8k"); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestDiskWriteFile_FullDisk(t *testing.T) {
	dir := mountTiny(t)
	path := filepath.Join(dir, "a.json")
	must(t, (Disk{}).WriteFile(path, []byte("whole")))
	err := Disk{}.WriteFile(path, bytes.Repeat([]byte("x"), 64<<10))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v, want ENOSPC", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "whole" {
		t.Errorf("earlier file: got %q, %v, want it untouched", got, err)
	}
	if diff := cmp.Diff([]string{"a.json"}, listAll(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestDiskWriteDurable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	if err := (Disk{}).WriteDurable(path, []byte("x")); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "x" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := (Disk{}).WriteDurable(filepath.Join(path, "b.json"), nil); err == nil {
		t.Error("it is written below a file")
	}
}

// What lies in place of a document is not followed elsewhere, nor waited for.
func TestDiskReadFile_NotAFile(t *testing.T) {
	dir := t.TempDir()
	secret, link, pipe := filepath.Join(dir, "secret"), filepath.Join(dir, "link.json"), filepath.Join(dir, "pipe.json")
	must(t, errors.Join(os.WriteFile(secret, []byte("{}"), 0o600), os.Symlink(secret, link), syscall.Mkfifo(pipe, 0o600)))
	for _, path := range []string{link, pipe, dir} {
		if got, err := (Disk{}).ReadFile(path, 10); !errors.Is(err, ErrNotAFile) {
			t.Errorf("%s: got %q, %v, want %v", path, got, err, ErrNotAFile)
		}
	}
	// It is written in place of a link, and not through it.
	must(t, (Disk{}).WriteFile(link, []byte("new")))
	for path, want := range map[string]string{secret: "{}", link: "new"} {
		if got, err := (Disk{}).ReadFile(path, 10); string(got) != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
}

func TestDiskReadFile_Limit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(path, []byte("12345"), 0o600))
	if got, err := (Disk{}).ReadFile(path, 5); err != nil || string(got) != "12345" {
		t.Errorf("limit 5: got %q, %v, want 12345", got, err)
	}
	if got, err := (Disk{}).ReadFile(path, 4); err == nil {
		t.Errorf("limit 4: got %q, want an error", got)
	}
	if _, err := (Disk{}).ReadFile(filepath.Join(path, "x"), 4); err == nil {
		t.Error("file under a file: want an error")
	}
	if _, err := (Disk{}).ReadFile(path+".no", 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: got %v, want %v", err, fs.ErrNotExist)
	}
}

func TestDiskRemove_Missing(t *testing.T) {
	if err := (Disk{}).Remove(filepath.Join(t.TempDir(), "no")); err != nil {
		t.Errorf("Remove: %v", err)
	}
}
