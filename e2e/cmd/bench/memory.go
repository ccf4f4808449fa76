// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// memoryLimit is for the plugin's anonymous memory, in MB: 22 were measured on a node of this model with nine pods, and its
// heap may be half as large again between two collections (cleave runs with GOGC=50).
const memoryLimit = 33

// measureMemory waits until the plugin uses next to no CPU time for four seconds and reads how much memory is its own. A
// little CPU time it always uses: the simulated library looks for events from time to time.
func (b *bench) measureMemory(ctx context.Context, r *report) error {
	const looks, ticks = 40, 10
	var seen []int
	err := workload.Until(ctx, "the plugin to be idle", func(context.Context) (bool, string, error) {
		used, err := ticksOf(b.node.PID())
		if err != nil {
			return false, "", err
		}
		seen = append(seen, used)
		last := len(seen) - 1
		return last >= looks && seen[last]-seen[last-looks] <= ticks, fmt.Sprintf("CPU ticks %v", seen[max(0, last-looks):]), nil
	})
	if err != nil {
		return err
	}
	anonymous, err := memoryOf(b.node.PID(), "RssAnon")
	if err != nil {
		return err
	}
	resident, err := memoryOf(b.node.PID(), "VmRSS")
	if err != nil {
		return err
	}
	// Pages of the program's file are in the page cache once for all processes, and the kernel drops them when it needs
	// the memory: what the node cannot have back while the plugin runs is what is anonymous (proc_pid_status(5)).
	r.add(result{Name: "anonymous memory, idle", Value: anonymous, Limit: memoryLimit, Unit: "MB"})
	r.add(result{Name: "resident memory, idle, with pages of files", Value: resident, Unit: "MB"})
	return nil
}

// ticksOf is the CPU time that a process has used, in ticks of ten milliseconds (USER_HZ, proc_pid_stat(5)).
func ticksOf(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the plugin's CPU time: %w", err)
	}
	fields := strings.Fields(string(stat))
	user, err1 := strconv.Atoi(fields[13])
	system, err2 := strconv.Atoi(fields[14])
	return user + system, errors.Join(err1, err2)
}

// memoryOf is a figure of a process's memory, in MB.
func memoryOf(pid int, name string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the plugin's memory: %w", err)
	}
	n, err := ofStatus(string(status), name)
	if err != nil {
		return 0, fmt.Errorf("read the plugin's memory: %w", err)
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
