// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ownerVariable marks the processes of a cluster: its value is the directory of
// the cluster. What containerd starts on the host inherits it.
const ownerVariable = "CLEAVE_CLUSTER_OWNER"

// pipeVariable marks the MPS servers of a cluster's nodes, which get nothing of
// their starter's environment: its value is a directory below the cluster's.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// identity is a process and the time it started at, in clock ticks since boot:
// together they name it for good, while a number alone is used again.
type identity struct {
	pid   int
	start uint64
}

func (p identity) String() string { return fmt.Sprintf("%d %d", p.pid, p.start) }

func parseProcess(text string) (identity, error) {
	var p identity
	if n, err := fmt.Sscanf(text, "%d %d", &p.pid, &p.start); err != nil || n != 2 || p.pid <= 1 {
		return identity{}, fmt.Errorf("parse %q: want the number and the start time of a process", text)
	}
	return p, nil
}

// alive reports whether the process runs; one that waits for its parent to take
// note of its end does not.
func (p identity) alive() bool {
	state, start, err := readStat(p.pid)
	return err == nil && start == p.start && state != 'Z' && state != 'X'
}

// readStat returns the state and the start time of a process.
func readStat(pid int) (state byte, start uint64, err error) {
	data, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return 0, 0, err
	}
	return parseStat(data)
}

// parseStat reads /proc/PID/stat, where the second field is the name of the
// program in parentheses and may hold anything, parentheses too. A process whose
// first thread has ended while others still do is not at its end: it may have
// files and ports yet.
func parseStat(data []byte) (state byte, start uint64, err error) {
	_, rest, ok := cutLast(data, []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 20 || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("parse the state of a process: unexpected %q", data)
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("parse the start time of a process: %w", err)
	}
	state = fields[0][0]
	if threads := string(fields[17]); state == 'Z' && threads != "0" && threads != "1" {
		state = 'R'
	}
	return state, start, nil
}

func cutLast(data, sep []byte) (before, after []byte, found bool) {
	i := bytes.LastIndex(data, sep)
	if i < 0 {
		return data, nil, false
	}
	return data[:i], data[i+len(sep):], true
}

func procPath(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// allProcesses lists what runs now, in the order of the numbers.
func allProcesses() ([]identity, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	var list []identity
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		state, start, err := readStat(pid)
		if err != nil || state == 'Z' || state == 'X' {
			continue // ended
		}
		list = append(list, identity{pid, start})
	}
	slices.SortFunc(list, func(a, b identity) int { return a.pid - b.pid })
	return list, nil
}

// owned lists the processes of the cluster: those that carry its mark, the
// containers, and whatever shares a control group with a container.
func owned(l layout) ([]identity, error) {
	list, err := allProcesses()
	if err != nil {
		return nil, err
	}
	groups := containerIDs(l)
	var mine []identity
	for _, p := range list {
		if p.pid == os.Getpid() {
			continue
		}
		if hasMark(p.pid, l.dir) || isContainer(p.pid, l.dir) || inGroup(p.pid, groups) {
			mine = append(mine, p)
		}
	}
	return mine, nil
}

func hasMark(pid int, dir string) bool {
	data, err := os.ReadFile(procPath(pid, "environ"))
	if err != nil {
		return false // ended
	}
	return slices.ContainsFunc(strings.Split(string(data), "\x00"), func(v string) bool {
		return v == ownerVariable+"="+dir || strings.HasPrefix(v, pipeVariable+"="+dir+"/")
	})
}

// isContainer reports whether the root of the process is an image layer below the
// directory. A shell that merely looks at such a layer has the host's root.
func isContainer(pid int, dir string) bool {
	data, err := os.ReadFile(procPath(pid, "mountinfo"))
	if err != nil {
		return false // ended
	}
	for _, m := range parseMounts(data) {
		if m.point == "/" {
			return m.isLayerBelow(dir)
		}
	}
	return false
}

// containerIDs lists the containers that containerd knows of, on all nodes.
func containerIDs(l layout) []string {
	var ids []string
	// Which nodes there are is found without the state of the cluster, which may be missing.
	for _, node := range []layout{l, {l.path("nodes", "*")}} {
		found, err := filepath.Glob(filepath.Join(node.containerdState(), "io.containerd.runtime.v2.task", "k8s.io", "*"))
		if err != nil {
			return nil // the path is no pattern that Up could have made
		}
		for _, path := range found {
			ids = append(ids, filepath.Base(path))
		}
	}
	return ids
}

func inGroup(pid int, ids []string) bool {
	if len(ids) == 0 {
		return false
	}
	data, err := os.ReadFile(procPath(pid, "cgroup"))
	if err != nil {
		return false // ended
	}
	return slices.ContainsFunc(ids, func(id string) bool { return bytes.Contains(data, []byte("/"+id)) })
}

// otherKubelet reports whether a kubelet runs that is not of a cluster of this
// package.
func otherKubelet() bool {
	return kubeletRuns(func(environ []byte) bool { return !bytes.Contains(environ, []byte(ownerVariable+"=")) })
}

// kubeletRuns reports whether a kubelet runs whose environment fits.
func kubeletRuns(fits func(environ []byte) bool) bool {
	list, err := allProcesses()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(p identity) bool {
		name, err := os.ReadFile(procPath(p.pid, "comm"))
		if err != nil || strings.TrimSpace(string(name)) != string(Kubelet) {
			return false
		}
		environ, err := os.ReadFile(procPath(p.pid, "environ"))
		return err == nil && fits(environ)
	})
}
