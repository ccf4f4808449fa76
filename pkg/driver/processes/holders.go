// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Process is a process of the host.
type Process struct {
	PID int
	// Name is the kernel's name of it, at most 15 bytes (proc(5), /proc/PID/comm), with ? for unprintable characters.
	Name string
	// Pod is its pod's UID; empty for processes of the host.
	Pod types.UID
}

// String is such as "4711 (nv-hostengine)".
func (p Process) String() string { return fmt.Sprintf("%d (%s)", p.PID, p.Name) }

// Holding lists the processes that have a device file open, except this one, in ascending order. With an error there may be
// more: it cannot see or read all processes.
func (t Table) Holding(ctx context.Context, path string) ([]Process, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("look for users of a device file: %w", err)
	}
	file, ok := info.Sys().(*syscall.Stat_t)
	if !ok || file.Mode&syscall.S_IFMT != syscall.S_IFCHR {
		return nil, fmt.Errorf("look for users of a device file: %s is not one", path)
	}
	return t.HoldingDevices(ctx, file.Rdev)
}

// HoldingDevices is Holding for character devices with any of these numbers (makedev(3)), even without a file on the host.
func (t Table) HoldingDevices(ctx context.Context, numbers ...uint64) ([]Process, error) {
	if t.self == 1 {
		return nil, ErrHidden
	}
	entries, err := os.ReadDir(t.proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Process
	var unread error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == t.self {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		open, err := t.hasOpen(ctx, pid, numbers)
		if err != nil {
			unread = fmt.Errorf("read the open files of process %d: %w", pid, err)
		}
		if open {
			found = append(found, t.process(pid))
		}
	}
	slices.SortFunc(found, func(a, b Process) int { return a.PID - b.PID })
	return found, unread
}

// process describes a process, which may have just ended.
func (t Table) process(pid int) Process {
	comm, _ := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(pid), "comm"))
	cgroup, _ := t.cgroup(pid)
	return Process{pid, printable(strings.TrimSpace(string(comm))), PodOf(cgroup)}
}

// printable replaces control characters: processes, even a tenant's, choose their own names.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}

// hasOpen reports whether a process has a device open, under any path: containers have their own device files. A process may have
// billions of files open: they are listed in parts.
func (t Table) hasOpen(ctx context.Context, pid int, numbers []uint64) (bool, error) {
	dir, err := os.Open(filepath.Join(t.proc, strconv.Itoa(pid), "fd"))
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	for ctx.Err() == nil {
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) || gone(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		for _, name := range names {
			if number, ok := deviceOf(filepath.Join(dir.Name(), name)); ok && slices.Contains(numbers, number) {
				return true, nil
			}
		}
	}
	return false, ctx.Err()
}

// deviceOf is the number of the character device that a link of /proc/PID/fd points to. It uses only cached attributes, and skips
// paths that are not devices: a hanging file system, such as a network one, would never answer.
func deviceOf(link string) (number uint64, ok bool) {
	target, err := os.Readlink(link)
	if err != nil || !strings.Contains(target, "/dev/") {
		return 0, false
	}
	var stat unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &stat)
	if err != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0, false
	}
	return unix.Mkdev(stat.Rdev_major, stat.Rdev_minor), true
}

// gone reports whether an error means that a process has ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
