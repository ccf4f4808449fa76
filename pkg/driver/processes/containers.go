// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// OfClaim lists processes of containers that have been given a claim: some, if any are left. Device metadata of it is mounted in
// them (k8s.io/dynamic-resource-allocation/kubeletplugin v0.37.2, metadata.go: .../<namespace>_<name>/<request>/metadata.json below
// a directory whose name ends in "metadata"), which /proc/PID/mountinfo tells without privilege. It is for claims whose pods are not
// all known.
func (p *Pods) OfClaim(ctx context.Context, namespace, name string) ([]int, error) {
	byMark, err := p.claims.join(ctx, []string{"-metadata/" + namespace + "_" + name + "/"})
	return flatten(byMark), err
}

// byMark lists processes in pods for which a file with one of these marks in its path is mounted, by mark. One process of each cgroup
// is asked, as a container has one of its own and its processes have its mounts: however many they are, it takes the same time. Only
// where cgroups do not say which processes pods have are all processes of the table asked.
func (p *Pods) byMark(ctx context.Context, marks []string) (map[string][]int, error) {
	found := map[string][]int{}
	// ask reports whether a process could be asked: one that has just ended cannot.
	ask := func(pid int) (bool, error) {
		given, err := p.table.mounted(pid, marks)
		if gone(err) || err != nil && p.table.ended(pid) { // a zombie's mounts cannot be read
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

// members lists for each cgroup of pods, and below them, the processes in it, or threads where it has no others. It is false where
// that is not known, see ofPods; what it says of pods that the caller does not know is believed only while this process's own pod is
// found there.
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

// members lists the processes in one cgroup, or threads where it has no others; see processes. It skips what has none below it.
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

// mounted are those of some marks that are in the path of a file that is mounted for a process. The path is the fourth field
// (proc(5), /proc/PID/mountinfo).
func (t Table) mounted(pid int, marks []string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(pid), "mountinfo"))
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(line, " ", 5)
		for _, mark := range marks {
			if len(fields) == 5 && strings.Contains(fields[3], mark) && !slices.Contains(found, mark) {
				found = append(found, mark)
			}
		}
	}
	return found, nil
}
