// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// OfClaim lists processes of containers with a claim: some, if any are left. They have the claim's device metadata mounted
// (k8s.io/dynamic-resource-allocation/kubeletplugin v0.37.2, metadata.go: .../<namespace>_<name>/<request>/metadata.json below a
// directory whose name ends in "metadata"), which /proc/PID/mountinfo shows without privilege. A tenant can mount a path of that name,
// too, such as a subPath of its own volume: only one below the directories of metadata counts. It is for claims whose pods are not all
// known.
func (p *Pods) OfClaim(ctx context.Context, namespace, name string) ([]int, error) {
	byMark, err := p.claims.join(ctx, []string{"-metadata/" + namespace + "_" + name + "/"})
	return flatten(byMark), err
}

// byMark lists, by mark, processes in pods that have a file mounted with the mark in its path. It inspects one process per cgroup,
// as the processes of a container share its cgroup and mounts, so that the number of processes does not matter. Only if cgroups do
// not show the processes of pods, it inspects all processes of the table.
func (p *Pods) byMark(ctx context.Context, marks []string) (map[string][]int, error) {
	found := map[string][]int{}
	places := p.table.placesOf(p.metadata())
	// ask reports whether a process could be inspected: one that has just ended cannot.
	ask := func(pid int) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("look at what the containers of the node have mounted: %w", err)
		}
		given, err := p.table.mounted(pid, marks, places)
		if gone(err) {
			return false, nil
		}
		for _, mark := range given {
			if !p.table.ended(pid) {
				found[mark] = append(found[mark], pid)
			}
		}
		return true, err
	}
	groups, known := p.cgroups.members()
	if !known {
		err := p.table.each(ctx, func(pid int, cgroup string) error {
			if !strings.Contains(cgroup, podPrefix) {
				return nil
			}
			_, err := ask(pid)
			return err
		})
		return found, err
	}
	for _, pids := range groups {
		for _, pid := range pids {
			if asked, err := ask(pid); err != nil {
				return nil, err
			} else if asked {
				break
			}
		}
	}
	return found, nil
}

// members lists the processes of each cgroup of pods and below, or threads if it has no processes. It is false if that is unknown,
// see ofPods; for pods that the caller does not know, the result is trusted only while it includes this process's own pod.
func (c *cgroups) members() (all [][]int, known bool) {
	c.mu.Lock()
	roots, proven := c.roots, c.proven
	c.mu.Unlock()
	isThere := func() bool { return len(roots) > 0 && (c.own == "" || len(c.ownIn(roots)) > 0) }
	if !proven || !isThere() {
		roots, proven = c.renew()
	}
	if !proven || !isThere() {
		return nil, false
	}
	for _, r := range roots {
		if !r.unified && c.self == 1 {
			return nil, false // see read
		}
		err := filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return ignoreGone(err)
			}
			pids, err := group{path, r.unified}.members()
			if len(pids) > 0 {
				all = append(all, pids)
			}
			return err
		})
		if err != nil {
			return nil, false
		}
	}
	return all, !slices.ContainsFunc(all, func(pids []int) bool { return slices.Contains(pids, 0) }) // 0: of another PID namespace
}

// members lists the processes in one cgroup, or threads if it has no processes; see processes. It skips subtrees without any.
func (g group) members() ([]int, error) {
	if pids, err := idsIn(g.dir, processesFile); err != nil || len(pids) > 0 {
		return pids, err
	}
	if !g.unified {
		return idsIn(g.dir, tasksFile)
	}
	switch populated, err := g.populated(); {
	case err != nil:
		return nil, err
	case !populated:
		return nil, fs.SkipDir
	}
	return idsIn(g.dir, threadsFile)
}
