// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bufio"
	"bytes"
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
)

// maxMounts bounds what is read of a process's mounts in bytes, as a process in a user namespace can add 100,000 (fs.mount-max) of any
// length. Those that its container was started with come first, unless it copied its mount namespace (unshare(2)), and have less: the pod
// is an object of 1.5 MiB at most (etcd, --max-request-bytes), in which a mount takes a tenth of its line here, or more.
const maxMounts = 16 << 20

// mount is a line of /proc/PID/mountinfo (proc(5)): the device of a file system, the path in it that is mounted, and where. Both paths
// have blanks and the like in octal.
type mount struct{ device, root, point []byte }

// place is a directory by what mountinfo shows for all mounts in it: the device, and the beginning of the path.
type place struct {
	device string
	begin  []byte
}

func (p place) has(m mount) bool {
	return string(m.device) == p.device && bytes.HasPrefix(m.root, p.begin)
}

// escaped writes a path as in mountinfo (Linux, fs/proc_namespace.c, show_mountinfo).
var escaped = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// placesOf returns the places of directories, by each mount of this process above them: what a hidden one has is no tenant's either. It
// returns none, which stands for everywhere, if it does not know all: no container with a claim must be missed.
func (t Table) placesOf(dirs []string) (found []place) {
	for _, dir := range dirs {
		path, err := resolve(dir)
		if err != nil {
			return nil
		}
		path = escaped.Replace(path) + "/"
		known := len(found)
		err = t.mounts(t.self, func(m mount) bool {
			if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(string(m.point), "/")+"/"); ok {
				root := strings.TrimSuffix(strings.TrimSuffix(string(m.root), "//deleted"), "/")
				found = append(found, place{string(m.device), []byte(root + "/" + rest)})
			}
			return true
		})
		if err != nil || len(found) == known {
			return nil
		}
	}
	return found
}

// resolve follows the links of a path, as far as it exists.
func resolve(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if above := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && above != path {
		real, err = resolve(above)
		return filepath.Join(real, filepath.Base(path)), err
	}
	return real, err
}

// mounted returns the marks that occur in the path of a file, of one of the places, that is mounted for a process.
func (t Table) mounted(pid int, marks []string, places []place) (found []string, err error) {
	err = t.mounts(pid, func(m mount) bool {
		if places != nil && !slices.ContainsFunc(places, func(p place) bool { return p.has(m) }) {
			return true
		}
		for _, mark := range marks {
			if bytes.Contains(m.root, []byte(mark)) && !slices.Contains(found, mark) {
				found = append(found, mark)
			}
		}
		return len(found) < len(marks)
	})
	return found, err
}

// mounts visits the mounts of a process until visit returns false, from its first thread that has any: EINVAL is of one that has closed its
// files, some time before it is a zombie (Linux, fs/proc_namespace.c, mounts_open_common; kernel/exit.c, do_exit: exit_files before
// exit_task_namespaces).
func (t Table) mounts(pid int, visit func(mount) bool) error {
	dir := filepath.Join(t.proc, strconv.Itoa(pid))
	err := readMounts(filepath.Join(dir, "mountinfo"), visit)
	if !errors.Is(err, syscall.EINVAL) {
		return err
	}
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		err := readMounts(filepath.Join(dir, "task", thread.Name(), "mountinfo"), visit)
		if !errors.Is(err, syscall.EINVAL) && !gone(err) {
			return err
		}
	}
	return fmt.Errorf("read the mounts of process %d: no thread has any: %w", pid, syscall.ESRCH)
}

func readMounts(path string, visit func(mount) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(io.LimitReader(f, maxMounts), 64<<10)
	for begun := false; ; { // a longer line is read in parts, of which the first has enough
		line, more, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var fields [6][]byte
		for i := range fields {
			fields[i], line, _ = bytes.Cut(line, []byte(" "))
		}
		if !begun && len(fields[5]) > 0 && !visit(mount{device: fields[2], root: fields[3], point: fields[4]}) {
			return nil
		}
		begun = more
	}
}
