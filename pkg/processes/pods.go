// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Pods finds the processes of pods in the pods' cgroups, or where those cannot be read in the process table, whose every process
// costs time. It is safe for concurrent use.
type Pods struct {
	table   Table
	cgroups cgroups
	scans   scans

	mu sync.Mutex
	// left are the processes of pods that the process table had last. While one of them runs, the others need no look.
	left map[types.UID][]int
}

// NewPods looks for the node's pods below the mount of the host's cgroups. own is the UID of this process's pod, empty where it is
// in none.
func NewPods(mount string, own types.UID) *Pods { return newPods(Host(), mount, own) }

func newPods(table Table, mount string, own types.UID) *Pods {
	return &Pods{
		table: table, cgroups: cgroups{mount: mount, own: own, self: table.self}, scans: scans{turn: make(chan struct{}, 1)},
		left: map[types.UID][]int{},
	}
}

// OfPods lists process IDs of pods in ascending order: some, if any are left. It fails if it cannot see or read all processes,
// because then their absence proves nothing.
func (p *Pods) OfPods(ctx context.Context, pods []types.UID) ([]int, error) {
	found, unknown := p.cgroups.ofPods(pods)
	if len(found) > 0 || len(unknown) == 0 {
		return found, nil
	}
	if found = p.stillLeft(unknown); len(found) > 0 {
		return found, nil
	}
	byPod, err := p.scans.join(ctx, p.table, unknown)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, uid := range unknown {
		if delete(p.left, uid); len(byPod[uid]) > 0 {
			p.left[uid] = byPod[uid]
		}
	}
	return flatten(byPod), nil
}

// stillLeft are the processes of pods that were found and still run.
func (p *Pods) stillLeft(pods []types.UID) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []int
	for _, uid := range pods {
		for _, pid := range p.left[uid] {
			cgroup, err := p.table.cgroup(pid)
			if err == nil && slices.Contains(podsIn(cgroup), uid) && !p.table.ended(pid) {
				found = append(found, pid)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// scans reads the process table once for all who wait for it.
type scans struct {
	// turn is taken by who reads the table.
	turn chan struct{}

	mu sync.Mutex
	// next is the scan that has not begun; nil while nobody waits.
	next *scan
}

// scan is one look at the process table.
type scan struct {
	pods  []types.UID
	done  chan struct{}
	found map[types.UID][]int
	err   error
}

// join returns the processes of pods as a scan that began after the call found them.
func (s *scans) join(ctx context.Context, table Table, pods []types.UID) (map[types.UID][]int, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &scan{done: make(chan struct{})}
	}
	mine := s.next
	mine.pods = append(mine.pods, pods...)
	s.mu.Unlock()
	select {
	case <-mine.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case s.turn <- struct{}{}:
		s.run(ctx, table, mine)
		<-s.turn
	}
	if mine.err != nil {
		return nil, mine.err
	}
	found := map[types.UID][]int{}
	for _, uid := range pods {
		if len(mine.found[uid]) > 0 {
			found[uid] = mine.found[uid]
		}
	}
	return found, nil
}

// run makes a scan, unless it is done; the caller has the turn.
func (s *scans) run(ctx context.Context, table Table, mine *scan) {
	s.mu.Lock()
	if s.next != mine {
		s.mu.Unlock()
		return
	}
	s.next = nil
	s.mu.Unlock()
	mine.found, mine.err = table.byPod(context.WithoutCancel(ctx), mine.pods) // for the others, too
	close(mine.done)
}

// OfClaim lists the processes of containers that have been given a claim, in ascending order: device metadata of it is mounted in
// them (k8s.io/dynamic-resource-allocation/kubeletplugin v0.37.2, metadata.go: .../<namespace>_<name>/<request>/metadata.json below
// a directory whose name ends in "metadata"). It is for claims whose pods are not known, and reads the whole process table; of what
// is in pods also /proc/PID/mountinfo, which needs no privilege.
func (p *Pods) OfClaim(ctx context.Context, namespace, name string) ([]int, error) {
	mark := "-metadata/" + namespace + "_" + name + "/"
	var found []int
	err := p.table.each(ctx, func(pid int, cgroup string) error {
		if !strings.Contains(cgroup, podPrefix) {
			return nil
		}
		given, err := p.table.mounts(pid, mark)
		if gone(err) || (given || err != nil) && p.table.ended(pid) { // a zombie's mounts cannot be read
			return nil
		}
		if given {
			found = append(found, pid)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(found)
	return found, nil
}

// mounts reports whether a file whose path contains a mark is mounted for a process. The path is the fourth field (proc(5),
// /proc/PID/mountinfo).
func (t Table) mounts(pid int, mark string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(pid), "mountinfo"))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.SplitN(line, " ", 5); len(fields) == 5 && strings.Contains(fields[3], mark) {
			return true, nil
		}
	}
	return false, nil
}
