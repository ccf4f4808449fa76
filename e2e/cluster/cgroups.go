// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// PodGroups reports whether each pod of a cluster has a control group, as on a
// real node.
func PodGroups(c *Cluster) bool { return c.state.Host.PodGroups }

// podGroup is the control group above those of the cluster's pods.
func (l layout) podGroup() string { return "/cleave" + strings.ReplaceAll(l.dir, "/", "-") }

// podGroupOf is the control group above those of a node's pods.
func (l layout) podGroupOf(m machine) string {
	if m.number == 0 {
		return l.podGroup()
	}
	return l.podGroup() + "/" + m.name
}

// makePodGroup makes a control group in each hierarchy, with all controllers
// that the kubelet wants. With one for its pods, the kubelet gives each pod its
// own, by which the plugin knows the processes of a pod.
func makePodGroup(group string) error {
	list, err := hierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range list {
		parent := hierarchy
		for name := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
			if err := makeGroup(parent, filepath.Join(parent, name)); err != nil {
				return fmt.Errorf("make a control group for pods: %w", err)
			}
			parent = filepath.Join(parent, name)
		}
	}
	return nil
}

func makeGroup(parent, group string) error {
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	// With version 2, the kubelet refuses a group that lacks a controller which
	// the root has (Validate of pkg/kubelet/cm, cgroup_v2_manager_linux.go).
	controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err == nil {
		for name := range strings.FieldsSeq(string(controllers)) {
			if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil &&
				slices.Contains([]string{"cpu", "cpuset", "memory", "hugetlb", "pids"}, name) {
				return err
			}
		}
		return nil
	}
	// With version 1, a new cpuset has no processors and takes no process
	// (cpusets(7)).
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		data, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(group, file), data, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hierarchies are where control groups are: one with cgroup version 2, a
// directory for each controller with version 1.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("list the control groups: %w", err)
	}
	var list []string
	for _, e := range entries {
		if e.IsDir() {
			list = append(list, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return list, nil
}

// removeGroups removes the control groups of containers, whose processes are
// gone, the group above them when no other container is left in it, and others
// by name with all below them.
func removeGroups(ctx context.Context, ids, others []string) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range all {
		for _, group := range others {
			if err := removeGroup(ctx, filepath.Join(hierarchy, group)); err != nil {
				return err
			}
		}
	}
	parents, err := containerGroups()
	if err != nil {
		return err
	}
	for _, parent := range parents {
		for _, id := range ids {
			if err := removeGroup(ctx, filepath.Join(parent, id)); err != nil {
				return err
			}
		}
		if len(ids) > 0 {
			_ = os.Remove(parent) // refused while it holds others, and then it must stay
		}
	}
	return nil
}

// containerGroups lists the groups that containerd puts containers into: one
// in each hierarchy with cgroup version 1, one in all with version 2.
func containerGroups() ([]string, error) {
	var list []string
	for _, pattern := range []string{"k8s.io", "*/k8s.io"} {
		found, err := filepath.Glob(filepath.Join(cgroupRoot, pattern))
		if err != nil {
			return nil, fmt.Errorf("look for control groups of containers: %w", err)
		}
		list = append(list, found...)
	}
	return list, nil
}

// removeGroup removes a group and those below it. The kernel may need a moment
// after the last process is gone.
func removeGroup(ctx context.Context, group string) error {
	var all []string
	err := filepath.WalkDir(group, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look into the control group %s: %w", group, err)
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for _, path := range slices.Backward(all) {
		for {
			err := os.Remove(path)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if !errors.Is(err, syscall.EBUSY) || ctx.Err() != nil {
				return fmt.Errorf("remove the control group: %w", err)
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	}
	return nil
}
