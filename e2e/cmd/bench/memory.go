// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// memoryLimit is for the plugin's anonymous memory, in MB: 22 were measured on a node of this model with nine pods, and its
// heap may be half as large again between two collections (cleave runs with GOGC=50).
const memoryLimit = 33

// measureMemory waits until the plugin uses next to no CPU time for four seconds and reads how much memory is its own. A
// little CPU time it always uses: the simulated library looks for events from time to time.
func (b *bench) measureMemory(ctx context.Context, r *report) error {
	const looks, little = 40, 100 * time.Millisecond
	var seen []time.Duration
	err := workload.Until(ctx, "the plugin to be idle", func(context.Context) (bool, string, error) {
		used, err := process.ProcessorTime(b.node.PID())
		if err != nil {
			return false, "", err
		}
		seen = append(seen, used)
		last := len(seen) - 1
		return last >= looks && seen[last]-seen[last-looks] <= little, fmt.Sprintf("CPU time %v", seen[max(0, last-looks):]), nil
	})
	if err != nil {
		return err
	}
	anonymous, err := process.Memory(b.node.PID(), "RssAnon")
	if err != nil {
		return err
	}
	resident, err := process.Memory(b.node.PID(), "VmRSS")
	if err != nil {
		return err
	}
	// Pages of the program's file are in the page cache once for all processes, and the kernel drops them when it needs
	// the memory: what the node cannot have back while the plugin runs is what is anonymous (proc_pid_status(5)).
	r.add(result{Name: "anonymous memory, idle", Value: anonymous, Limit: memoryLimit, Unit: "MB"})
	r.add(result{Name: "resident memory, idle, with pages of files", Value: resident, Unit: "MB"})
	return nil
}
