// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// deviceManagerRoot is the one directory that a kubelet makes outside of its root
// directory, whatever path it is given.
const deviceManagerRoot = "/var/lib/kubelet"

// downTimeout bounds how long the end of killed processes is waited for.
const downTimeout = 90 * time.Second

// Down stops the cluster in a directory and removes the directory. It needs nothing
// of what is in there, so it works after any interruption, and it is no error
// when there is nothing. The built programs stay.
func Down(ctx context.Context, dir string) error {
	dir, err := checkDir(dir)
	if err != nil {
		return err
	}
	if err := requireRoot(); err != nil {
		return err
	}
	l := layout{dir}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		// The directory may have been removed by hand under a running cluster.
		return errors.Join(stopAll(ctx, l), removeGroups(ctx, nil, []string{l.podGroup()}))
	}
	unlock, err := lock(ctx, dir, io.Discard)
	if err != nil {
		return err
	}
	defer unlock()
	if err := wipe(ctx, l); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the cluster directory: %w", err)
	}
	return nil
}

// wipe stops everything and empties the directory.
func wipe(ctx context.Context, l layout) error {
	if err := checkEntries(l.dir); err != nil {
		return err
	}
	s, stateErr := readState(l) // may be missing or half written
	ids := containerIDs(l)
	if err := stopAll(ctx, l); err != nil {
		return err
	}
	if stateErr == nil {
		if err := restoreHost(s.Host); err != nil {
			return err
		}
	}
	if err := errors.Join(removeGroups(ctx, ids, []string{l.podGroup()}), removeOutside(l), removeNetwork(ctx, l)); err != nil {
		return err
	}
	for _, name := range entries {
		if err := os.RemoveAll(l.path(name)); err != nil {
			return fmt.Errorf("remove the cluster directory: %w", err)
		}
	}
	// What an interrupted write leaves behind.
	return os.RemoveAll(l.state() + ".new")
}

// checkEntries refuses to clear a directory that holds what no cluster makes.
func checkEntries(dir string) error {
	found, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look into the cluster directory: %w", err)
	}
	for _, entry := range found {
		if !slices.Contains(entries, strings.TrimSuffix(entry.Name(), ".new")) {
			return fmt.Errorf("clear %s: it holds %s, which is not of a cluster; remove that yourself or choose another directory", dir,
				entry.Name())
		}
	}
	return nil
}

// stopAll ends all processes and takes away all mounts of the cluster.
func stopAll(ctx context.Context, l layout) error {
	if err := killOwned(ctx, l); err != nil {
		return err
	}
	return unmountBelow(l.dir)
}

// killOwned kills the processes of the cluster until two looks in a row find
// none: one that was just being started shows in the second. Nothing of the
// cluster is to be kept but what is named, so nothing is asked to end politely.
func killOwned(ctx context.Context, l layout, kept ...identity) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	for clean := 0; clean < 2; {
		list, err := owned(l)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p identity) bool { return slices.Contains(kept, p) })
		if len(list) == 0 {
			clean++
			continue
		}
		clean = 0
		for _, p := range list {
			err = errors.Join(err, p.signal(syscall.SIGKILL))
		}
		if err != nil {
			return fmt.Errorf("stop the cluster: %w", err)
		}
		if left := waitGone(ctx, list); len(left) > 0 {
			return fmt.Errorf("stop the cluster: %d processes do not end, the first is %d: %w", len(left), left[0].pid, ctx.Err())
		}
	}
	return nil
}

// restoreHost undoes what a kubelet does to the machine outside of its directory,
// unless a kubelet runs still, which needs it.
func restoreHost(h host) error {
	if kubeletRuns(func([]byte) bool { return true }) {
		return nil
	}
	if err := restoreSysctls(h.Sysctls); err != nil {
		return err
	}
	if !h.OwnKubeletDir {
		return nil
	}
	plugins := filepath.Join(deviceManagerRoot, "device-plugins")
	for _, path := range []string{
		filepath.Join(plugins, "kubelet.sock"), filepath.Join(plugins, "kubelet_internal_checkpoint"), filepath.Join(plugins, "DEPRECATION"),
		plugins, deviceManagerRoot,
	} {
		// A directory that is not empty holds what others put there.
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return fmt.Errorf("remove what the kubelet left: %w", err)
		}
	}
	return nil
}

// removeOutside removes what the kubelet and the network plugins keep in
// directories that cannot be chosen: links to pod logs, and results by network.
func removeOutside(l layout) error {
	const links = "/var/log/containers"
	found, err := filepath.Glob(filepath.Join(links, "*.log"))
	if err != nil {
		return fmt.Errorf("look for links to pod logs: %w", err)
	}
	var mine []string
	for _, link := range found {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, l.dir+"/") {
			mine = append(mine, link)
		}
	}
	results, err := filepath.Glob("/var/lib/cni/results/" + l.networkName() + "-*")
	if err != nil {
		return fmt.Errorf("look for results of the network plugins: %w", err)
	}
	for _, path := range append(mine, results...) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove what a pod left: %w", err)
		}
	}
	for _, directory := range []string{"/var/lib/cni/results", "/var/lib/cni"} {
		_ = os.Remove(directory) // refused while somebody uses it
	}
	return nil
}
