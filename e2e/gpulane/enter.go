// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// entry is what a process is to become: a program in namespaces like those of a container.
type entry struct {
	// Mounts are directories to be seen elsewhere. /tmp is an empty one of its own, as a container's is.
	Mounts []mount `json:"mounts,omitempty"`
	// Proc means that the process has process ids of its own.
	Proc bool `json:"proc,omitempty"`
	// User to become; 0 to stay root.
	User    int      `json:"user,omitempty"`
	Program string   `json:"program,omitempty"`
	Args    []string `json:"args,omitempty"`
	Env     []string `json:"env,omitempty"`
}

type mount struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// entered is what Enter prints where it does not become the program.
type entered struct {
	Event string `json:"event"`
	Error string `json:"error,omitempty"`
}

// The events of entered.
const (
	eventRefused = "refused"
	eventEntered = "entered"
)

// Enter makes of this process, which has a mount namespace of its own, what its argument says. It returns only where that
// fails, or where there is no program to become.
func Enter(argument string) error {
	runtime.LockOSThread()
	answer := entered{Event: eventEntered}
	var e entry
	err := json.Unmarshal([]byte(argument), &e)
	if err == nil {
		err = e.become()
	}
	if err != nil {
		answer = entered{Event: eventRefused, Error: err.Error()}
	}
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(answer))
}

func (e *entry) become() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("shut the mount namespace off: %w", err)
	}
	trees := make([]int, len(e.Mounts))
	for i, m := range e.Mounts {
		var err error
		trees[i], err = unix.OpenTree(unix.AT_FDCWD, m.From, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("take %s along: %w", m.From, err)
		}
	}
	if err := unix.Mount("gpu-lane", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mount an empty /tmp: %w", err)
	}
	for i, m := range e.Mounts {
		if err := put(trees[i], m.To); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.From, m.To, err)
		}
	}
	if e.Proc {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount a /proc of these processes: %w", err)
		}
	}
	if e.User != 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(e.User), syscall.Setuid(e.User)); err != nil {
			return fmt.Errorf("become user %d: %w", e.User, err)
		}
	}
	if e.Program == "" {
		return watchable()
	}
	return fmt.Errorf("run %s: %w", e.Program, syscall.Exec(e.Program, append([]string{e.Program}, e.Args...), e.Env))
}

func put(tree int, to string) error {
	if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
		if !strings.HasPrefix(to, "/tmp/") { // nothing is made outside of this namespace
			return fmt.Errorf("%w, and it is not made outside of /tmp", err)
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// watchable reports whether the kernel has what the supervisor watches processes by.
func watchable() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("open a process: %w", err)
	}
	return unix.Close(fd)
}
