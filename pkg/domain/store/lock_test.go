// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	shared, err := LockFile(path, syscall.LOCK_SH)
	must(t, err)
	if _, err := LockFile(path, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("while another has it: got %v, want EWOULDBLOCK", err)
	}
	_ = shared.Close()
	locked, err := LockFile(path, syscall.LOCK_EX|syscall.LOCK_NB)
	must(t, err)
	if !IsAt(locked, path) {
		t.Error("the file is not at its path")
	}
	// Who waits for a file that is then deleted gets a lock of the file that is there afterwards.
	got := make(chan *os.File)
	go func() {
		file, err := LockFile(path, syscall.LOCK_EX)
		if err != nil {
			t.Error(err)
		}
		got <- file
	}()
	must(t, os.Remove(path))
	if IsAt(locked, path) {
		t.Error("a deleted file is at its path")
	}
	_ = locked.Close()
	file := <-got
	if !IsAt(file, path) {
		t.Error("locked a deleted file")
	}
	_ = file.Close()
	if _, err := LockFile(filepath.Join(path, "x"), syscall.LOCK_EX); err == nil {
		t.Error("file under a file: want an error")
	}
}

// A link in place of the file would have another file locked, or one made wherever the link leads.
func TestLockFile_Link(t *testing.T) {
	dir := t.TempDir()
	there, missing := filepath.Join(dir, "there"), filepath.Join(dir, "missing")
	must(t, os.WriteFile(there, []byte("data"), 0o600))
	for name, target := range map[string]string{"to a file": there, "to nothing": missing} {
		link := filepath.Join(dir, name)
		must(t, os.Symlink(target, link))
		if file, err := LockFile(link, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.ELOOP) {
			_ = file.Close()
			t.Errorf("link %s: got %v, want ELOOP", name, err)
		}
	}
	if data, err := os.ReadFile(there); string(data) != "data" {
		t.Errorf("the link's target has %q, %v", data, err)
	}
	if _, err := os.Lstat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link's target that was not there: got %v, want none", err)
	}
}

func TestBootID(t *testing.T) {
	procfs := t.TempDir()
	path := filepath.Join(procfs, "sys/kernel/random/boot_id")
	if _, err := BootID(procfs); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: got %v, want an error that names it", err)
	}
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	for data, want := range map[string]string{"1234\n": "1234", "\n": ""} {
		must(t, os.WriteFile(path, []byte(data), 0o600))
		if got, err := BootID(procfs); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", data, got, err, want)
		}
	}
}
