// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/pkg/driver/processes"
)

// programName is how the kernel names the programs of MPS, control daemon and server: the first 15 bytes.
const programName = "nvidia-cuda-mps"

// maxEnviron bounds the part of a process's environment that is read, in bytes.
const maxEnviron = 256 << 10

// A program that was just started has its name before its environment: execve(2) fills the new memory later. MPS's programs always
// have variables, so those without any are checked again, for maxLook in all: containers may run any number of programs of that
// name.
const (
	maxLook   = time.Second
	lookAgain = 10 * time.Millisecond
)

// findProcesses lists the programs of MPS whose pipes are in a directory, in order of process id, without those of other pods. Clients in
// containers see the directory under another name, and are not MPS programs.
func findProcesses(pipe string) ([]ProcessID, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var found, unsure []ProcessID
	look := func(id ProcessID) error {
		has, known, err := hasVariable(id.PID, pipeVariable+pipe)
		if has {
			found = append(found, id)
		} else if !known {
			unsure = append(unsure, id)
		}
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !isProgram(pid) || isOfAnotherPod(pid, own) {
			continue
		}
		start, err := startTime(pid)
		if err != nil {
			continue // it has ended
		}
		if err := look(ProcessID{PID: pid, Start: start}); err != nil {
			return nil, err
		}
	}
	for until := time.Now().Add(maxLook); len(unsure) > 0 && time.Now().Before(until); {
		<-time.After(lookAgain)
		again := unsure
		unsure = nil
		for _, id := range again {
			if err := look(id); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(found, func(a, b ProcessID) int { return a.PID - b.PID })
	return found, nil
}

// isProgram reports whether a process is one of MPS's programs.
func isProgram(pid int) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.HasPrefix(string(name), programName)
}

// isOfAnotherPod reports whether a process runs in a pod other than this process's. Such processes are not asked for more: tenants choose
// their names and variables, and one whose execve(2) hangs, on a file system of the tenant, keeps readers of its environ and stat in the
// kernel until it ends (exec_update_lock, fs/exec.c), which those of its cgroup are not.
func isOfAnotherPod(pid int, own []byte) bool {
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	pod := processes.PodOf(string(cgroup))
	return err == nil && pod != "" && pod != processes.PodOf(string(own))
}

// hasVariable reports whether a process has an environment variable: false if it has ended, or is unreadable, which ours are not.
// For a process without an environment yet, it is unknown.
func hasVariable(pid int, variable string) (has, known bool, err error) {
	environ, err := environOf(pid)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrPermission) {
		return false, true, nil // ESRCH also while its parent has not taken notice
	}
	if err != nil {
		return false, true, err
	}
	if len(environ) == 0 {
		return false, isZombie(pid), nil
	}
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if string(v) == variable {
			return true, true, nil
		}
	}
	return false, true, nil
}

// isZombie reports whether a process is a zombie, which has no environment on older kernels.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}

// environOf is the environment of a process in /proc.
func environOf(pid int) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxEnviron))
}
