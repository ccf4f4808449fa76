// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// watched is a process identified by a pidfd: its PID cannot be confused after reuse, and its end is noticed at once, even if it is
// not a child.
type watched struct {
	id   ProcessID
	fd   *os.File
	done chan struct{}
	// child is nil for one that was adopted. Its outcome is read when done is closed.
	child *exec.Cmd
	once  sync.Once
}

// watchProcess starts watching a process, which must have the given start time.
func watchProcess(id ProcessID, child *exec.Cmd) (*watched, error) {
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	// For a thread that is not a group leader, kernels return EINVAL, newer ones ENOENT (kernel/pid.c, pidfd_open).
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: there is no process %d", errGone, id.PID)
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	w := &watched{id: id, fd: os.NewFile(uintptr(fd), "pidfd"), done: make(chan struct{}), child: child}
	// The fd first: a process that now has the right start time is the one that the fd refers to.
	if start, err := startTime(id.PID); err != nil || start != id.Start {
		w.Forget()
		return nil, fmt.Errorf("%w: process %d is another one now", errGone, id.PID)
	}
	raw, err := w.fd.SyscallConn()
	if err != nil {
		w.Forget()
		return nil, fmt.Errorf("watch process %d: %w", id.PID, err)
	}
	go func() { // ends with the process, or when the fd is closed
		if err := raw.Read(hasEnded); err != nil {
			return
		}
		if w.child != nil {
			_ = w.child.Wait() // How reports the outcome
		}
		close(w.done)
	}()
	return w, nil
}

// hasEnded reports whether a pidfd is readable, which means that its process has ended.
func hasEnded(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1
}

func (w *watched) ID() ProcessID         { return w.id }
func (w *watched) Done() <-chan struct{} { return w.done }

// How describes how it ended, which only the parent knows.
func (w *watched) How() string {
	if w.child == nil || w.child.ProcessState == nil {
		return "of unknown cause"
	}
	return w.child.ProcessState.String()
}

func (w *watched) Terminate() error { return w.signal(unix.SIGTERM) }
func (w *watched) Kill() error      { return w.signal(unix.SIGKILL) }

func (w *watched) signal(s unix.Signal) error {
	raw, err := w.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// Forget closes the fd, which ends the waiting goroutine.
func (w *watched) Forget() { w.once.Do(func() { _ = w.fd.Close() }) }

// startTime is when a process started, in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStart(stat)
}

// parseStart reads field 22 of proc_pid_stat(5). The name in field 2 may contain anything, even parentheses and spaces.
func parseStart(stat []byte) (uint64, error) {
	const startAfterName = 22 - 3
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= startAfterName {
		return 0, errors.New("read when a process started: /proc/PID/stat is too short")
	}
	return strconv.ParseUint(string(fields[startAfterName]), 10, 64)
}
