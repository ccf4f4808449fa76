// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sandboxFD is where a process reads its instructions: the first after standard input, output and error.
const sandboxFD = 3

// maxSandbox bounds its instructions, in bytes.
const maxSandbox = 64 << 10

// searchPath is where drivers put their programs.
const searchPath = "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// sandbox is a program of the driver with its environment.
type sandbox struct {
	// Root is the driver's root, which contains the program's libraries.
	Root string `json:"root"`
	// Pipe and Log have the same paths inside.
	Pipe string `json:"pipe"`
	Log  string `json:"log"`
	// Shm becomes /dev/shm; empty to leave that as it is.
	Shm string `json:"shm,omitempty"`
	// Cgroup to enter; empty for none.
	Cgroup  string `json:"cgroup,omitempty"`
	Program string `json:"program"`
	// Search is the search path for the program, like PATH; empty for the usual directories.
	Search string   `json:"search,omitempty"`
	Args   []string `json:"args,omitempty"`
	Env    []string `json:"env"`
}

// Enter reads its instructions, isolates this process from the node as they require, and executes the program. It returns only on
// failure. Without instructions it fails: the supervisor died before the process was on record.
func Enter() error {
	in := os.NewFile(sandboxFD, "sandbox")
	if in == nil {
		return errors.New("no instructions on file descriptor 3: this command is internal to the supervisor")
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSandbox))
	if err != nil {
		return fmt.Errorf("read instructions: %w; this command is internal to the supervisor", err)
	}
	_ = in.Close()
	if len(data) == 0 {
		return errors.New("no instructions: the supervisor has ended, or could not record this process")
	}
	var s sandbox
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("decode instructions: %w", err)
	}
	runtime.LockOSThread() // namespaces belong to the thread until exec
	if s.Cgroup != "" {
		if err := enterCgroup(s.Cgroup); err != nil {
			fmt.Fprintf(os.Stderr, "cleave: staying in the supervisor's cgroup, so a container runtime kills this daemon with it: %v\n", err)
		}
	}
	if err := s.enterRoot(); err != nil {
		return err
	}
	program, err := find(s.Program, cmp.Or(s.Search, searchPath))
	if err != nil {
		return fmt.Errorf("%w under %s: does the driver's installation there have MPS?", err, s.Root)
	}
	// With an ordinary umask the privileged socket is root's; the daemon itself opens the client pipes to any user (see pipes.go).
	syscall.Umask(0o022)
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, append([]string{program}, s.Args...), s.Env))
}

// find looks a program up. exec.LookPath would use this process's PATH.
func find(program, search string) (string, error) {
	for _, dir := range filepath.SplitList(search) {
		path := filepath.Join(dir, program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s in %s", program, search)
}

// enterRoot makes the driver's root the root of a new mount namespace, with the directories of the GPU.
func (s *sandbox) enterRoot() error {
	if s.Root == "/" && s.Shm == "" {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// Unmounts outside propagate inside, but nothing propagates outside.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("shut the mount namespace off: %w", err)
	}
	trees := []tree{{from: s.Pipe, to: s.Pipe}, {from: s.Log, to: s.Log}}
	if s.Shm != "" {
		trees = append(trees, tree{from: s.Shm, to: "/dev/shm"})
	}
	for i := range trees {
		if err := trees[i].take(); err != nil {
			return err
		}
	}
	if err := detachShared(); err != nil {
		return err
	}
	if s.Root != "/" {
		if err := pivot(s.Root); err != nil {
			return fmt.Errorf("make %s the root: %w", s.Root, err)
		}
	}
	for _, t := range trees {
		if err := t.put(); err != nil {
			return fmt.Errorf("mount %s below %s: %w", t.to, s.Root, err)
		}
	}
	return nil
}

// tree is a directory to mount into another root. Paths are resolved inside it, so that links cannot lead out.
type tree struct {
	from, to string
	fd       int
}

func (t *tree) take() (err error) {
	t.fd, err = unix.OpenTree(unix.AT_FDCWD, t.from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("take %s along: %w", t.from, err)
	}
	return nil
}

func (t *tree) put() error {
	defer func() { _ = unix.Close(t.fd) }()
	var there, taken unix.Stat_t
	err := unix.Stat(t.to, &there)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(t.to, 0o755) //nolint:gosec // a directory to mount on, as all above it
	}
	if err != nil {
		return err
	}
	if err := unix.Fstat(t.fd, &taken); err != nil {
		return err
	}
	if there.Dev == taken.Dev && there.Ino == taken.Ino {
		return nil // the host's own root shows it already
	}
	return unix.MoveMount(t.fd, "", unix.AT_FDCWD, t.to, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// detachShared unmounts the file systems of all GPUs in this namespace: they would stay mounted until this process ends, long after
// a GPU's last share.
func detachShared() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, dir := range sharedMounts(string(mounts)) {
		err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("detach %s: %w", dir, err)
		}
	}
	return nil
}

// sharedMounts lists where our tmpfs are mounted, by proc_pid_mountinfo(5).
func sharedMounts(mountinfo string) []string {
	var dirs []string
	for line := range strings.SplitSeq(mountinfo, "\n") {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if ok && len(left) > 4 && len(right) > 1 && right[0] == "tmpfs" && right[1] == mountSource {
			dirs = append(dirs, unescape.Replace(left[4]))
		}
	}
	return dirs
}

// unescape reverses the kernel's escaping of paths in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// pivot changes the root and detaches the old one, so that the daemon keeps no reference to the supervisor's container.
func pivot(root string) error {
	if err := unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil { // must be a mount point
		return err
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the old one then lies on top, pivot_root(2)
		return fmt.Errorf("pivot: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	return unix.Chdir("/")
}
