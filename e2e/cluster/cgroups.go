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
	"syscall"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// removeGroups removes the control groups of containers, whose processes are
// gone, and the group above them when no other container is left in it.
func removeGroups(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
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
