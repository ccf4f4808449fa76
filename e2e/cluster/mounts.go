// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// mount is a line of /proc/PID/mountinfo.
type mount struct {
	root    string // the directory of the file system that is mounted
	point   string // where
	options string // of the file system
}

// parseMounts reads a mountinfo file; a line that it does not understand is
// left out.
func parseMounts(data []byte) []mount {
	var list []mount
	for line := range bytes.Lines(data) {
		before, after, ok := strings.Cut(strings.TrimSpace(string(line)), " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(rest) < 3 {
			continue
		}
		list = append(list, mount{unescape(fields[3]), unescape(fields[4]), unescape(strings.Join(rest[2:], " "))})
	}
	return list
}

// unescape turns the octal escapes of a mountinfo file into what they mean.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// isLayerBelow reports whether the mount is an image layer kept below a directory.
func (m mount) isLayerBelow(dir string) bool {
	for option := range strings.SplitSeq(m.options, ",") {
		name, value, _ := strings.Cut(option, "=")
		if (name == "lowerdir" || name == "upperdir" || name == "workdir") && strings.HasPrefix(value, dir+"/") {
			return true
		}
	}
	return false
}

// mountsBelow lists the mounts at and below a directory, the last one first: the
// order in which they can be taken away.
func mountsBelow(dir string) ([]mount, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}
	return selectBelow(parseMounts(data), dir), nil
}

func selectBelow(all []mount, dir string) []mount {
	var list []mount
	for i := len(all) - 1; i >= 0; i-- {
		if p := all[i].point; p == dir || strings.HasPrefix(p, dir+"/") {
			list = append(list, all[i])
		}
	}
	return list
}

// mountMemory mounts a file system in memory on a directory, unless there is one.
func mountMemory(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return nil
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=755,size=64m"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// unmountBelow takes away every mount at and below a directory. Taking one away
// can uncover or release others, so it looks again until there is none.
func unmountBelow(dir string) error {
	const rounds = 10
	var problems error
	for range rounds {
		list, err := mountsBelow(dir)
		if err != nil || len(list) == 0 {
			return err
		}
		problems = nil
		for _, m := range list {
			err := syscall.Unmount(m.point, 0)
			if errors.Is(err, syscall.EBUSY) {
				// Its last user is gone from our view; let the kernel finish.
				err = syscall.Unmount(m.point, syscall.MNT_DETACH)
			}
			if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
				problems = errors.Join(problems, fmt.Errorf("unmount %s: %w", m.point, err))
			}
		}
	}
	return errors.Join(fmt.Errorf("unmount everything below %s: mounts keep appearing", dir), problems)
}
