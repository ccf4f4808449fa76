// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errNoELF means that a file is not a program that a driver would ship.
var errNoELF = errors.New("no ELF file")

const maxLoaderPath = 4096

// loaderOf returns the path of a program's loader; empty for a static program.
func loaderOf(program io.ReaderAt) (string, error) {
	f, err := elf.NewFile(program)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoELF, err)
	}
	for _, segment := range f.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		path := make([]byte, min(segment.Filesz, maxLoaderPath))
		if _, err := segment.ReadAt(path, 0); err != nil {
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
