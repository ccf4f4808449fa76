// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Container runtimes run the hook as root, some with the environment of the container and in its file system: a program that
// loads no library takes none from there, whatever LD_PRELOAD says.
func TestNVIDIA_LoadsNoLibrary(t *testing.T) {
	path, err := Install(t.TempDir(), NVIDIA)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("make hook has not built it")
	}
	if err != nil {
		t.Fatal(err)
	}
	program, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s has a segment %s: it is linked dynamically", NVIDIA, p.Type)
		}
	}
}

// A disk that is full, or read-only, does not keep a plugin from starting again: what is installed already is not written. What
// is another program, or cannot be run, is replaced.
func TestInstall_OnlyWhatDiffers(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	program := bytes.Repeat([]byte("program"), 64<<10)
	if _, err := z.Write(program); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hooks", "hook")
	inode := func() uint64 {
		t.Helper()
		if err := install(packed.Bytes(), path); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, program) || info.Mode() != programMode {
			t.Errorf("%d bytes are installed, mode %s (%v)", len(got), info.Mode(), err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	last := inode()
	if again := inode(); again != last {
		t.Error("the same program is written again")
	}
	for name, spoil := range map[string]func() error{
		"one byte changed": func() error { return os.WriteFile(path, append([]byte("P"), program[1:]...), programMode) },
		"shorter":          func() error { return os.Truncate(path, int64(len(program)-1)) },
		"longer":           func() error { return os.WriteFile(path, append(program, 0), programMode) },
		"empty":            func() error { return os.Truncate(path, 0) },
		"not to be run":    func() error { return os.Chmod(path, 0o644) },
		"writable for all": func() error { return os.Chmod(path, 0o777) },
		"a link":           func() error { return errors.Join(os.Rename(path, path+".0"), os.Symlink(path+".0", path)) },
	} {
		if err := spoil(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if again := inode(); again == last && name == "a link" {
			t.Errorf("%s: it is not replaced", name)
		} else {
			last = again
		}
	}
}
