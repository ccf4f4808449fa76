// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/binary"
)

// The parts of a shared object in ELF format. Package debug/elf has them too, but would add much code to programs that only read
// nodes.
type (
	elfHeader struct {
		Ident                      [16]byte
		Type, Machine              uint16
		Version                    uint32
		Entry, Phoff, Shoff        uint64
		Flags                      uint32
		Ehsize, Phentsize, Phnum   uint16
		Shentsize, Shnum, Shstrndx uint16
	}
	elfSegment struct {
		Type, Flags                             uint32
		Off, Vaddr, Paddr, Filesz, Memsz, Align uint64
	}
	elfDynamic struct{ Tag, Val uint64 }
)

// stubLibrary builds the smallest shared object that tools accept: an ELF64 header, one loadable segment, and a dynamic section
// with the SONAME, for amd64.
func stubLibrary(soname string) []byte {
	const (
		headers  = 64 + 2*56 // ELF header, two program headers
		dynCount = 6
		dynSize  = 16 * dynCount
		symSize  = 24 // the one null symbol
		hashSize = 16 // no buckets to speak of
		dynOff   = headers
		symOff   = dynOff + dynSize
		hashOff  = symOff + symSize
		strOff   = hashOff + hashSize
	)
	strtab := append([]byte{0}, soname...)
	strtab = append(strtab, 0)
	size := uint64(strOff + len(strtab))

	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a buffer never fails
	put(elfHeader{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, // 64 bits, little endian, version 1
		Type:    3,                                      // ET_DYN
		Machine: 62,                                     // EM_X86_64
		Version: 1,
		Phoff:   64, Ehsize: 64, Phentsize: 56, Phnum: 2, Shentsize: 64,
	})
	put(elfSegment{Type: 1, Flags: 4, Filesz: size, Memsz: size, Align: 4096}) // PT_LOAD, readable
	put(elfSegment{Type: 2, Flags: 4, Off: dynOff, Vaddr: dynOff, Paddr: dynOff, Filesz: dynSize, Memsz: dynSize, Align: 8})
	for _, d := range []elfDynamic{
		{14, 1},                   // DT_SONAME
		{5, strOff},               // DT_STRTAB
		{10, uint64(len(strtab))}, // DT_STRSZ
		{6, symOff},               // DT_SYMTAB
		{4, hashOff},              // DT_HASH
		{0, 0},                    // DT_NULL
	} {
		put(d)
	}
	b.Write(make([]byte, symSize))
	put([4]uint32{1, 1, 0, 0}) // one bucket, one chain: the null symbol
	b.Write(strtab)
	return b.Bytes()
}
