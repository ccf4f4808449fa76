// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Owner is whose a process is.
type Owner struct {
	// Pod is empty for processes of the host.
	Pod types.UID
	// Name is the kernel's, at most 15 bytes (proc(5), /proc/PID/comm). The process chooses it.
	Name string
	// Started is when the process began.
	Started time.Time
}

// podUID matches UIDs of pods: those of the API server, and those of static pods, which are hashes.
var podUID = regexp.MustCompile(`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})$`)

// ticks per second of times in procfs: USER_HZ, which is 100 on all architectures that Go has.
const ticks = 100

// Owners finds the owners of processes, without those that have ended. It fails if it cannot see processes of other pods.
func (t Table) Owners(ctx context.Context, pids []int) (map[int]Owner, error) {
	if t.self == 1 {
		return nil, ErrHidden
	}
	booted, err := t.booted()
	if err != nil {
		return nil, err
	}
	owners := map[int]Owner{}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		cgroup, err := t.cgroup(pid)
		if gone(err) {
			continue
		}
		var o Owner
		var since time.Duration
		if err == nil {
			o.Name, since, err = t.started(pid)
		}
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find the pod of process %d: %w", pid, err)
		}
		o.Pod, o.Started = PodOf(cgroup), booted.Add(since)
		owners[pid] = o
	}
	return owners, nil
}

// PodOf is the pod of a process by its /proc/PID/cgroup; the outermost, as a pod can have a cluster in it. It is empty for processes of the
// host.
func PodOf(cgroup string) types.UID {
	for _, uid := range podsIn(cgroup) {
		if podUID.MatchString(string(uid)) {
			return uid
		}
	}
	return ""
}

// booted is the time of the boot by the present clock: that of /proc/stat is in whole seconds.
func (t Table) booted() (time.Time, error) {
	data, err := os.ReadFile(filepath.Join(t.proc, "uptime"))
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time since boot: %w", err)
	}
	up, _, _ := strings.Cut(string(data), " ")
	seconds, err := strconv.ParseFloat(up, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time since boot: %w", err)
	}
	return time.Now().Add(-time.Duration(seconds * float64(time.Second))), nil
}

// started reads a process's name, and when it began after the boot (proc(5), /proc/PID/stat, fields 2 and 22).
func (t Table) started(pid int) (name string, since time.Duration, err error) {
	data, err := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, err
	}
	stat := string(data)
	begin, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')') // the name may contain anything
	if begin < 0 || end < begin {
		return "", 0, fmt.Errorf("read the stat of process %d: no name", pid)
	}
	fields := strings.Fields(stat[end+1:])
	const first, wanted = 3, 22
	if len(fields) <= wanted-first {
		return "", 0, fmt.Errorf("read the stat of process %d: %d fields", pid, len(fields)+first-1)
	}
	count, err := strconv.ParseInt(fields[wanted-first], 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("read the stat of process %d: %w", pid, err)
	}
	return printable(stat[begin+1 : end]), time.Duration(count) * time.Second / ticks, nil
}
