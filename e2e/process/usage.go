// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc/PID/stat, USER_HZ, on all architectures that Go knows.
const tick = 10 * time.Millisecond

// ProcessorTime is what a process has used of processors.
func ProcessorTime(pid int) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}

// stat are the fields of /proc/PID/stat from the third on: the second is the name, which may contain anything (proc(5)).
func stat(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	return fields, nil
}

// Memory is a figure of a process's memory in MB, by its name in /proc/PID/status, such as VmRSS.
func Memory(pid int, name string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	n, err := ofStatus(string(status), name)
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return n, nil
}

// ofStatus reads a number of /proc/PID/status, which gives it in KiB, in MB.
func ofStatus(status, name string) (float64, error) {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, name+":")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) != 2 || fields[1] != "kB" {
			return 0, fmt.Errorf("%s is %q", name, strings.TrimSpace(rest))
		}
		kib, err := strconv.ParseUint(fields[0], 10, 62)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		return float64(kib) * 1024 / 1e6, nil
	}
	return 0, fmt.Errorf("there is no %s", name)
}
