// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// Names of the kubelet: the cgroup above those of all pods (defaultNodeAllocatableCgroupName of k8s.io/kubernetes/pkg/kubelet/cm
// v1.37.1, node_container_manager_linux.go), those of the QoS classes below it, where that of guaranteed pods is itself
// (qos_container_manager_linux.go, Start), and the suffix of the systemd driver (cgroup_manager_linux.go, systemdSuffix).
const (
	podsName    = "kubepods"
	sliceSuffix = ".slice"
)

var qosClasses = []string{"", "burstable", "besteffort"}

// Files of a cgroup, see the kernel's Documentation/admin-guide/cgroup-v2.rst; eventsFile has none but version 2.
const (
	controllersFile = "cgroup.controllers"
	eventsFile      = "cgroup.events"
	processesFile   = "cgroup.procs"
	threadsFile     = "cgroup.threads"
	// tasksFile are the threads with version 1.
	tasksFile = "tasks"
)

// Bounds of the search for the cgroups above those of pods: the kubelet's cgroupRoot is rarely deeper than two levels.
const (
	maxDepth = 4
	maxDirs  = 4096
)

// cgroups are those of the node's pods.
type cgroups struct {
	// mount is where the file system of version 2 is mounted, or in directories of it those of version 1.
	mount string
	// own is the UID of this process's pod; empty outside of pods.
	own types.UID
	// self is this process. As PID 1 of a namespace it sees no others.
	self int

	mu    sync.Mutex
	roots []root
	// proven is set once the container runtime is known to keep the processes of pods below the roots.
	proven bool
}

// root is the cgroup above those of all pods in one hierarchy.
type root struct {
	dir string
	// slice is its name for systemd without the suffix; empty with the cgroupfs driver.
	slice string
	// unified is set for version 2.
	unified bool
}

// group is the cgroup of a pod in one hierarchy.
type group struct {
	dir     string
	unified bool
}

// ofPods lists processes of pods: some, if any are left. It returns as unknown the pods that it cannot judge.
//
// The result is trusted only if this process is in the cgroup of its own pod: otherwise the container runtime uses other cgroups
// than the kubelet, as with different cgroup drivers. A pod without a cgroup has no process: the kubelet creates it before it
// prepares the pod's claims (kubelet.go, SyncPod, EnsureExists), and it cannot be removed while a process is in it (cgroups(7)).
// That applies only where the kubelet currently keeps its pods, as the cgroup of this process's pod shows.
func (c *cgroups) ofPods(pods []types.UID) (found []int, unknown []types.UID) {
	c.mu.Lock()
	roots, proven := c.roots, c.proven
	c.mu.Unlock()
	found, missing := c.read(roots, pods)
	if len(found) > 0 || len(missing) == 0 && proven {
		return found, nil
	}
	if !proven || len(c.ownIn(roots)) == 0 {
		roots, proven = c.renew()
		found, missing = c.read(roots, pods)
	}
	switch {
	case len(found) > 0:
		return found, nil
	case !proven:
		return nil, pods
	case len(c.ownIn(roots)) > 0:
		missing = slices.DeleteFunc(missing, func(uid types.UID) bool { return isAbsent(roots, uid) })
	}
	return nil, missing
}

// renew searches for the roots again.
func (c *cgroups) renew() (roots []root, proven bool) {
	roots = c.search()
	proven = c.own == "" || slices.ContainsFunc(c.ownIn(roots), c.hasSelf)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roots, c.proven = roots, proven
	return roots, proven
}

// ownIn are the cgroups of this process's pod.
func (c *cgroups) ownIn(roots []root) []group {
	groups, err := groupsOf(roots, c.own)
	if err != nil {
		return nil
	}
	return groups
}

// hasSelf reports whether this process is in a cgroup, or below it.
func (c *cgroups) hasSelf(g group) bool {
	pids, err := g.list(processesFile)
	return err == nil && slices.Contains(pids, c.self)
}

func isAbsent(roots []root, uid types.UID) bool {
	groups, err := groupsOf(roots, uid)
	return err == nil && len(groups) == 0
}

// read lists the processes of pods that have a cgroup, and the pods that have none or whose cgroup cannot be read.
func (c *cgroups) read(roots []root, pods []types.UID) (found []int, missing []types.UID) {
	for _, uid := range pods {
		groups, err := groupsOf(roots, uid)
		for _, g := range groups {
			if err != nil {
				break
			}
			var pids []int
			if g.unified || c.self != 1 {
				pids, err = g.processes()
			} else {
				err = ErrHidden // version 1 omits processes outside of this process's PID namespace
			}
			found = append(found, pids...)
		}
		if err != nil || len(groups) == 0 {
			missing = append(missing, uid)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), missing
}

// groupsOf are the cgroups of a pod.
func groupsOf(roots []root, uid types.UID) ([]group, error) {
	if uid == "" || strings.ContainsAny(string(uid), "/_.\x00") {
		return nil, fmt.Errorf("%q names no pod", uid)
	}
	var found []group
	for _, r := range roots {
		for _, qos := range qosClasses {
			dir := r.pod(qos, uid)
			_, err := os.Lstat(dir)
			if err == nil {
				found = append(found, group{dir, r.unified})
			} else if !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("look for the cgroup of a pod: %w", err)
			}
		}
	}
	return found, nil
}

// pod is the path of the cgroup of a pod of a QoS class (cgroup_manager_linux.go, ToCgroupfs and ToSystemd).
func (r root) pod(qos string, uid types.UID) string {
	if r.slice == "" {
		return filepath.Join(r.dir, qos, podPrefix+string(uid))
	}
	dir, slice := r.dir, r.slice
	if qos != "" {
		slice += "-" + qos
		dir = filepath.Join(dir, slice+sliceSuffix)
	}
	return filepath.Join(dir, slice+"-"+podPrefix+strings.ReplaceAll(string(uid), "-", "_")+sliceSuffix)
}

// search looks for the roots in all hierarchies. Unreadable directories are skipped.
func (c *cgroups) search() []root {
	var found []root
	for _, h := range c.hierarchies() {
		left := maxDirs
		found = h.search(found, 0, &left)
	}
	return found
}

// controllers are those of version 1 whose hierarchies are searched for pods: the kubelet requires them
// (container_manager_linux.go, validateSystemRequirements), and container runtimes put every container there, for its limits.
var controllers = []string{"cpu", "memory"}

// hierarchies are the top cgroups: one with version 2, one for each controller with version 1.
func (c *cgroups) hierarchies() []group {
	if exists(filepath.Join(c.mount, controllersFile)) {
		return []group{{c.mount, true}}
	}
	entries, _ := os.ReadDir(c.mount)
	var all []group
	for _, e := range entries { // no links, such as cpu to cpu,cpuacct
		isController := func(name string) bool { return slices.Contains(controllers, name) }
		if e.IsDir() && slices.ContainsFunc(strings.Split(e.Name(), ","), isController) {
			all = append(all, group{filepath.Join(c.mount, e.Name()), false})
		}
	}
	return all
}

func (g group) search(found []root, depth int, left *int) []root {
	if *left--; *left < 0 || depth > maxDepth {
		return found
	}
	entries, _ := os.ReadDir(g.dir)
	for _, e := range entries {
		dir := filepath.Join(g.dir, e.Name())
		slice, isSlice := strings.CutSuffix(e.Name(), sliceSuffix)
		switch {
		case !e.IsDir():
		case e.Name() == podsName:
			found = append(found, root{dir: dir, unified: g.unified})
		case isSlice && (slice == podsName || strings.HasSuffix(slice, "-"+podsName)):
			found = append(found, root{dir, slice, g.unified})
		case filepath.Ext(e.Name()) == ".service" || filepath.Ext(e.Name()) == ".scope": // systemd's, with processes of its own
		default:
			found = group{dir, g.unified}.search(found, depth+1, left)
		}
	}
	return found
}

// processes lists the processes in a cgroup and those below it.
func (g group) processes() ([]int, error) {
	if !g.unified {
		// A process whose main thread has ended while another one hangs in the driver appears only in the list of threads.
		if pids, err := g.list(processesFile); err != nil || len(pids) > 0 {
			return pids, err
		}
		return g.list(tasksFile)
	}
	// One read shows whether there is any, including those hidden by PID namespaces, and those whose main thread has ended while
	// another one hangs in the driver: cgroup.procs omits them (css_task_iter_advance of the kernel). Zombies do not count.
	if populated, err := g.populated(); err != nil || !populated {
		return nil, err
	}
	for _, file := range []string{processesFile, threadsFile} {
		if pids, err := g.list(file); err != nil || len(pids) > 0 {
			return pids, err
		}
	}
	if populated, err := g.populated(); err != nil || !populated {
		return nil, err
	}
	return []int{0}, nil // as the kernel writes those of other PID namespaces
}

// populated reports whether a process lives in a cgroup of version 2 or below it.
func (g group) populated() (bool, error) {
	data, err := os.ReadFile(filepath.Join(g.dir, eventsFile))
	if ignoreGone(err) == nil && err != nil && !exists(g.dir) {
		return false, nil // removed meanwhile
	}
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "populated "); ok {
			return strings.TrimSpace(value) != "0", nil
		}
	}
	return false, fmt.Errorf("%s of %s does not say whether it is populated", eventsFile, g.dir)
}

// list reads the IDs in a file of a cgroup and of those below it.
func (g group) list(file string) (ids []int, err error) {
	err = filepath.WalkDir(g.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreGone(err)
		}
		here, err := idsIn(path, file)
		ids = append(ids, here...)
		return err
	})
	slices.Sort(ids)
	return slices.Compact(ids), err
}

func idsIn(dir, file string) (ids []int, err error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil, nil // a threaded cgroup: its processes are in the one above (cgroup-v2.rst, Threads)
	}
	if err != nil {
		return nil, ignoreGone(err)
	}
	for field := range strings.FieldsSeq(string(data)) {
		id, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", file, dir, err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// ignoreGone ignores the removal of a cgroup, which then had no processes.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
