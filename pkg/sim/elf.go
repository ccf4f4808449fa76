package sim

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// stubLibrary makes the smallest shared object that tools take for one: an ELF64 header, one loadable segment, and a
// dynamic section with the SONAME, for amd64.
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
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a buffer does not fail
	put(elf.Header64{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_DYN),
		Machine: uint16(elf.EM_X86_64),
		Version: uint32(elf.EV_CURRENT),
		Phoff:   64, Ehsize: 64, Phentsize: 56, Phnum: 2, Shentsize: 64,
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Filesz: size, Memsz: size, Align: 4096})
	put(elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R), Off: dynOff, Vaddr: dynOff, Paddr: dynOff,
		Filesz: dynSize, Memsz: dynSize, Align: 8})
	for _, d := range []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_STRTAB), Val: strOff},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(strtab))},
		{Tag: int64(elf.DT_SYMTAB), Val: symOff},
		{Tag: int64(elf.DT_HASH), Val: hashOff},
		{Tag: int64(elf.DT_NULL)},
	} {
		put(d)
	}
	put(elf.Sym64{})
	put([4]uint32{1, 1, 0, 0}) // one bucket, one chain: the null symbol
	b.Write(strtab)
	return b.Bytes()
}
