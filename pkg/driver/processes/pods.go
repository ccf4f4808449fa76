// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Pods finds the processes of pods in the pods' cgroups or, if those are unreadable, in the process table, whose scan is slower. It
// is safe for concurrent use.
type Pods struct {
	table   Table
	cgroups cgroups
	scans   scans[types.UID]
	// claims are scans for the containers of claims.
	claims scans[string]
	// metadata returns the directories of the claims' device metadata; none if they are not known.
	metadata func() []string

	mu sync.Mutex
	// left are the processes of pods from the last scan of the process table. While one of them runs, no new scan is needed.
	left map[types.UID][]int
}

// NewPods looks for the node's pods below the mount of the host's cgroups, and for what containers have been given in the directories
// of device metadata, or everywhere if there are none. own is the UID of this process's pod; empty outside of pods.
func NewPods(mount string, own types.UID, metadata func() []string) *Pods {
	p := newPods(Host(), mount, own)
	p.metadata = metadata
	return p
}

func newPods(table Table, mount string, own types.UID) *Pods {
	p := &Pods{table: table, cgroups: cgroups{mount: mount, own: own, self: table.self}, left: map[types.UID][]int{},
		metadata: func() []string { return nil }}
	p.scans = scans[types.UID]{turn: make(chan struct{}, 1), look: table.byPod}
	p.claims = scans[string]{turn: make(chan struct{}, 1), look: p.byMark}
	return p
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
	byPod, err := p.scans.join(ctx, unknown)
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

// InPods returns those of the processes that run in pods; none if this process cannot see them.
func (p *Pods) InPods(pids []int) (found []Process) {
	for _, pid := range pids {
		if one := p.table.process(pid); p.table.self != 1 && one.Pod != "" {
			found = append(found, one)
		}
	}
	return found
}

// stillLeft are the previously found processes that still run.
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

// scanTimeout bounds a scan, so that two fit in a call of the kubelet, which lasts 45 seconds at most (defaultClientCallTimeout of
// k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin v1.37.1, dra_plugin.go).
const scanTimeout = 15 * time.Second

// scans looks for processes, by pods or by marks of claims, once for all waiting callers.
type scans[K comparable] struct {
	look func(ctx context.Context, of []K) (map[K][]int, error)
	// turn is held by the scanning caller.
	turn chan struct{}

	mu sync.Mutex
	// next is the pending scan; nil while nobody waits.
	next *scan[K]
}

// scan is one shared scan.
type scan[K comparable] struct {
	of    []K
	done  chan struct{}
	found map[K][]int
	err   error
}

// join returns the results of a scan that began after the call.
func (s *scans[K]) join(ctx context.Context, of []K) (map[K][]int, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &scan[K]{done: make(chan struct{})}
	}
	mine := s.next
	mine.of = append(mine.of, of...)
	s.mu.Unlock()
	select {
	case <-mine.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case s.turn <- struct{}{}:
		s.run(ctx, mine)
		<-s.turn
	}
	if mine.err != nil {
		return nil, mine.err
	}
	found := map[K][]int{}
	for _, one := range of {
		if len(mine.found[one]) > 0 {
			found[one] = mine.found[one]
		}
	}
	return found, nil
}

// run performs a scan, unless it is done; the caller has the turn.
func (s *scans[K]) run(ctx context.Context, mine *scan[K]) {
	s.mu.Lock()
	if s.next != mine {
		s.mu.Unlock()
		return
	}
	s.next = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), scanTimeout) // on behalf of all waiting callers
	defer cancel()
	mine.found, mine.err = s.look(ctx, mine.of)
	close(mine.done)
}
