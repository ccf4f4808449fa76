// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"debug/elf"
	"errors"
	"io/fs"
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
