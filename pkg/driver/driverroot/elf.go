// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errNoELF means that a file is not a program that a driver would ship.
var errNoELF = errors.New("no 64-bit little-endian ELF file")

// Sizes and numbers of elf(5).
const (
	elfHeader     = 64
	elfSegment    = 56
	maxSegments   = 256
	maxLoaderPath = 4096
	interpreter   = 3 // PT_INTERP
)

// loaderOf returns the path of a program's loader; empty for a static program.
func loaderOf(program io.ReaderAt) (string, error) {
	head := make([]byte, elfHeader)
	if _, err := program.ReadAt(head, 0); err != nil {
		return "", fmt.Errorf("%w: %w", errNoELF, err)
	}
	if string(head[:4]) != "\x7fELF" || head[4] != 2 || head[5] != 1 {
		return "", errNoELF
	}
	order := binary.LittleEndian
	at, size, count := order.Uint64(head[32:]), order.Uint16(head[54:]), order.Uint16(head[56:])
	if size < elfSegment || count > maxSegments || at > 1<<40 {
		return "", errNoELF
	}
	segment := make([]byte, elfSegment)
	for i := range int64(count) {
		if _, err := program.ReadAt(segment, int64(at)+i*int64(size)); err != nil {
			return "", fmt.Errorf("%w: %w", errNoELF, err)
		}
		if order.Uint32(segment) != interpreter {
			continue
		}
		offset, length := order.Uint64(segment[8:]), order.Uint64(segment[32:])
		if length == 0 || length > maxLoaderPath || offset > 1<<40 {
			return "", errNoELF
		}
		path := make([]byte, length)
		if _, err := program.ReadAt(path, int64(offset)); err != nil {
			return "", fmt.Errorf("%w: %w", errNoELF, err)
		}
		return strings.TrimRight(string(path), "\x00"), nil
	}
	return "", nil
}

// open opens a file below the root as a chrooted program would: links do not escape the root.
func (r Root) open(path string) (*os.File, error) {
	dir, err := unix.Open(r.Here, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: r.Here, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(dir, strings.TrimPrefix(path, "/"), how)
	if err != nil {
		return nil, &os.PathError{Op: "open below " + r.Here, Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// resolve is where this process finds a file below the root. An absolute link, such as Debian's /usr/bin/nvidia-smi to
// /etc/alternatives, would lead it out of the root.
func (r Root) resolve(path string) string {
	joined := filepath.Join(r.Here, path)
	f, err := r.open(path)
	if err != nil {
		return joined // to run it says why not
	}
	defer func() { _ = f.Close() }()
	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return joined
	}
	return target
}

// has reports whether a regular file exists below the root.
func (r Root) has(path string) bool {
	f, err := r.open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}
