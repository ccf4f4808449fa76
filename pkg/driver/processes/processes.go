// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// maxCgroup bounds the cgroup file of a process in bytes: one line per hierarchy, each with a path of at most PATH_MAX.
const maxCgroup = 64 << 10

// Table is the process table of the host.
type Table struct {
	// proc is a procfs of the host's PID namespace, self this process's ID there.
	proc string
	self int
}

// Host is the table of this process's PID namespace: the host's if the plugin's pod has hostPID.
func Host() Table { return Table{proc: "/proc", self: os.Getpid()} }

// ErrHidden means that this process cannot see the processes of other pods.
var ErrHidden = errors.New("processes of other pods cannot be seen: the plugin's pod needs hostPID")

// OfPods lists the process IDs of pods in ascending order. It fails if it cannot see or read all processes, because then
// their absence proves nothing. Reading /proc/PID/cgroup needs no privilege (proc(5)).
func (t Table) OfPods(ctx context.Context, pods []types.UID) ([]int, error) {
	found, err := t.byPod(ctx, pods)
	return flatten(found), err
}

// byPod is OfPods, by pod.
func (t Table) byPod(ctx context.Context, pods []types.UID) (map[types.UID][]int, error) {
	found := map[types.UID][]int{}
	if len(pods) == 0 {
		return found, nil
	}
	wanted := map[types.UID]bool{}
	for _, uid := range pods {
		wanted[uid] = uid != ""
	}
	err := t.each(ctx, func(pid int, cgroup string) error {
		for _, uid := range podsIn(cgroup) {
			if wanted[uid] && !slices.Contains(found[uid], pid) && !t.ended(pid) {
				found[uid] = append(found[uid], pid)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// each visits the processes with their cgroups.
func (t Table) each(ctx context.Context, visit func(pid int, cgroup string) error) error {
	if t.self == 1 { // the first process of a container with its own PID namespace
		return ErrHidden
	}
	entries, err := os.ReadDir(t.proc)
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		cgroup, err := t.cgroup(pid)
		if gone(err) {
			continue // the process has ended
		}
		if err == nil {
			err = visit(pid, cgroup)
		} else {
			err = fmt.Errorf("read the cgroup of process %d: %w", pid, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// podPrefix begins the kubelet's name for the cgroup of a pod: "pod<UID>" with the cgroupfs driver, and with underscores for
// dashes, which separate levels, in the last part of a slice's name with the systemd driver (podCgroupNamePrefix and
// escapeSystemdCgroupName of k8s.io/kubernetes/pkg/kubelet/cm v1.37.1, pod_container_manager_linux.go and cgroup_manager_linux.go).
const podPrefix = "pod"

// podsIn returns candidates for the UIDs of pods in a cgroup file.
func podsIn(cgroup string) []types.UID {
	var found []types.UID
	for {
		_, rest, ok := strings.Cut(cgroup, podPrefix)
		if !ok {
			return found
		}
		name := rest
		if end := strings.IndexAny(rest, "/.\n "); end >= 0 {
			name = rest[:end]
		}
		found = append(found, types.UID(strings.ReplaceAll(name, "_", "-")))
		cgroup = rest
	}
}

// flatten lists each process once, in ascending order.
func flatten[K comparable](found map[K][]int) []int {
	var all []int
	for _, pids := range found {
		all = append(all, pids...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// ended reports whether a process has ended and only awaits reaping: it is a zombie, which may still be in its cgroup (cgroups(7)),
// without other threads or open files.
func (t Table) ended(pid int) bool {
	dir := filepath.Join(t.proc, strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return gone(err)
	}
	// The state comes after the name, which may contain anything (proc(5)).
	if !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z")) {
		return false
	}
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	return gone(err) || err == nil && len(threads) <= 1
}

// cgroup reads the cgroups of a process. A cgroup namespace does not hide the names of other pods' cgroups
// (cgroup_namespaces(7)).
func (t Table) cgroup(pid int) (string, error) {
	f, err := os.Open(filepath.Join(t.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCgroup))
	return string(data), err
}
