// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStubLibrary(t *testing.T) {
	data := stubLibrary("libcuda.so.1")
	f, err := elf.NewFile(bytes.NewReader(data))
	must(t, err)
	if f.Type != elf.ET_DYN || f.Machine != elf.EM_X86_64 || len(f.Progs) != 2 {
		t.Errorf("header = %+v", f.FileHeader)
	}
	// Go finds the SONAME through sections, which the stub has none of; so read the segment as loaders do.
	dynamic := f.Progs[1]
	raw := data[dynamic.Off : dynamic.Off+dynamic.Filesz]
	values := map[elf.DynTag]uint64{}
	for ; len(raw) >= 16; raw = raw[16:] {
		values[elf.DynTag(f.ByteOrder.Uint64(raw))] = f.ByteOrder.Uint64(raw[8:])
	}
	strings := data[values[elf.DT_STRTAB] : values[elf.DT_STRTAB]+values[elf.DT_STRSZ]]
	name, _, _ := bytes.Cut(strings[values[elf.DT_SONAME]:], []byte{0})
	if diff := cmp.Diff("libcuda.so.1", string(name)); diff != "" {
		t.Errorf("SONAME (-want +got):\n%s", diff)
	}
}
