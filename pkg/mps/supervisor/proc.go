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
)

// programName is how the kernel names the programs of MPS, control daemon and server: the first 15 bytes.
const programName = "nvidia-cuda-mps"

// maxEnviron bounds what is read of a process's environment, in bytes.
const maxEnviron = 256 << 10

// A program that has just been started has its name before its environment: execve(2) fills the new memory after that. MPS's programs
// always have variables, so an empty environment is looked at again, up to maxLooks times.
const (
	maxLooks  = 100
	lookAgain = 10 * time.Millisecond
)

// findProcesses lists the programs of MPS whose pipes are in a directory, in order of process id. Clients in containers
// know the directory by another name, and are no programs of MPS.
func findProcesses(pipe string) ([]ProcessID, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []ProcessID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !isProgram(pid) {
			continue
		}
		start, err := startTime(pid)
		if err != nil {
			continue // it has ended
		}
		has, err := hasVariable(pid, pipeVariable+pipe)
		if err != nil {
			return nil, err
		}
		if has {
			found = append(found, ProcessID{PID: pid, Start: start})
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

// hasVariable reports whether a process was given an environment variable; not, if it has ended, or is one that this
// process may not look into: ours are.
func hasVariable(pid int, variable string) (bool, error) {
	environ, err := environOf(pid)
	for looks := 1; err == nil && len(environ) == 0 && looks < maxLooks && !isZombie(pid); looks++ {
		<-time.After(lookAgain)
		environ, err = environOf(pid)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrPermission) {
		return false, nil // ESRCH also while its parent has not taken notice
	}
	if err != nil {
		return false, err
	}
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if string(v) == variable {
			return true, nil
		}
	}
	return false, nil
}

// isZombie reports whether a process has ended, and its parent has not noticed: such a one has no environment on older kernels.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}

// environOf is the environment of a process, as /proc has it.
func environOf(pid int) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxEnviron))
}
