// SPDX-License-Identifier: Apache-2.0

// Package processes finds the processes of pods on this node.
//
// A pod that was deleted by force leaves the API server at once, while its containers still run. The driver lists processes
// only while they have a context on a GPU: one that is between two contexts, or has not made its first yet, does not show.
package processes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// maxCgroup bounds what is read of the cgroups of a process, in bytes: a line for each hierarchy, and a path of at most
// PATH_MAX in each.
const maxCgroup = 64 << 10

// Table is the process table of the host.
type Table struct {
	// proc is a procfs of the host's PID namespace, self the process ID of this process there.
	proc string
	self int
}

// Host is the table of the PID namespace of this process: the host's where the plugin's pod has hostPID.
func Host() Table { return Table{proc: "/proc", self: os.Getpid()} }

// errHidden is why nothing can be said of other pods' processes.
var errHidden = errors.New("processes of other pods cannot be seen: the plugin's pod needs hostPID")

// OfPods lists the processes of pods, ascending. Processes that cannot be told apart are an error: nothing follows from a
// process that cannot be seen. What is read, /proc/PID/cgroup, needs no privilege (proc(5)).
func (t Table) OfPods(ctx context.Context, pods []types.UID) ([]int, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	if t.self == 1 { // the first process of a container that has a PID namespace of its own
		return nil, errHidden
	}
	entries, err := os.ReadDir(t.proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	names := cgroupNames(pods)
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		cgroup, err := t.cgroup(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, fmt.Errorf("read the cgroup of process %d: %w", pid, err)
		}
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(cgroup, name) }) {
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found, nil
}

// cgroupNames are what the kubelet names the cgroups of pods: "pod<UID>" with the cgroupfs driver, and with systemd's, in which
// a dash means a level, with underscores (pkg/kubelet/cm/cgroup_manager_linux.go, escapeSystemdCgroupName).
func cgroupNames(pods []types.UID) []string {
	var names []string
	for _, uid := range pods {
		if len(uid) == 0 {
			continue
		}
		names = append(names, "pod"+string(uid), "pod"+strings.ReplaceAll(string(uid), "-", "_"))
	}
	return names
}

// cgroup reads the cgroups of a process. Seen from a cgroup namespace, those of other pods keep their names (cgroup_namespaces(7)).
func (t Table) cgroup(pid int) (string, error) {
	f, err := os.Open(filepath.Join(t.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCgroup))
	return string(data), err
}
