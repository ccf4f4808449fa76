// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
)

// residentMB is the memory of a process that is resident, in MB.
func residentMB(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
			}
			return kib * 1024 / 1e6, nil
		}
	}
	return 0, fmt.Errorf("read the memory of process %d: it has ended", pid)
}

// apiServerMB is the memory of the API server that is resident, garbage included.
func apiServerMB(ctx context.Context, c *cluster.Cluster) (float64, error) {
	all, err := c.Status(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		if s.Component == cluster.APIServer {
			return residentMB(s.PID)
		}
	}
	return 0, errors.New("find the API server: it does not run")
}

// apiServerHeapMB is what the API server's heap holds, in MB, after a garbage collection (net/http/pprof, gc=1): what it keeps
// resident can be twice that and more after many objects were written at once.
func apiServerHeapMB(ctx context.Context, client kubernetes.Interface) (float64, error) {
	profile, err := client.Discovery().RESTClient().Get().AbsPath("/debug/pprof/heap").Param("gc", "1").Param("debug", "1").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the heap profile of the API server: %w", err)
	}
	for line := range strings.Lines(string(profile)) {
		if rest, ok := strings.CutPrefix(line, "# HeapAlloc = "); ok {
			bytes, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				return 0, fmt.Errorf("read the heap profile of the API server: %w", err)
			}
			return bytes / 1e6, nil
		}
	}
	return 0, errors.New("read the heap profile of the API server: it does not say HeapAlloc")
}

// ticksPerSecond is the unit of processor time in /proc/PID/stat, USER_HZ, on all architectures that Go knows.
const ticksPerSecond = 100

// processorTime is what a process has used of processors: fields 14 and 15 of /proc/PID/stat (proc(5)).
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // from the third on
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the processor time of process %d: its stat file is too short", pid)
	}
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / ticksPerSecond, errors.Join(err1, err2)
}
