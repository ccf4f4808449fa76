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
)

// programName is how the kernel names the programs of MPS, control daemon and server: the first 15 bytes.
const programName = "nvidia-cuda-mps"

// maxEnviron bounds what is read of a process's environment, in bytes.
const maxEnviron = 256 << 10

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
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	var environ []byte
	if err == nil {
		defer f.Close()
		environ, err = io.ReadAll(io.LimitReader(f, maxEnviron))
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
