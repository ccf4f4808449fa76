// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A container runtime kills all processes in the cgroups of an ending container. A daemon in a cgroup outside of these survives.

// makeCgroup creates the cgroup of a daemon; empty if none is configured.
func (p Processes) makeCgroup(d Daemon) (string, error) {
	if p.Cgroup == "" {
		return "", nil
	}
	var at unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(filepath.Clean(p.Cgroup)), &at); err != nil {
		return "", fmt.Errorf("stat --daemon-cgroup %s: %w", p.Cgroup, err)
	}
	if at.Type != unix.CGROUP2_SUPER_MAGIC {
		return "", fmt.Errorf("--daemon-cgroup %s is not in a cgroup v2 file system", p.Cgroup)
	}
	dir := filepath.Join(p.Cgroup, d.GPU)
	var err error
	for range 100 {
		// The parent goes with the last daemon of other GPUs, maybe in between.
		if err = makeDirs(p.Cgroup, dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return "", fmt.Errorf("create the cgroup of a daemon (--daemon-cgroup): %w", err)
	}
	return dir, nil
}

// makeDirs creates those that do not exist, in order.
func makeDirs(dirs ...string) error {
	for _, d := range dirs {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// enterCgroup moves this process. A container has a cgroup namespace of its own, and the kernel lets no process move out of it
// (cgroups(7), nsdelegate). So this process enters that of process 1, which is the host's with hostPID.
func enterCgroup(dir string) error {
	if ns, err := os.Open("/proc/1/ns/cgroup"); err == nil {
		// If it fails, the write below shows whether it mattered.
		_ = unix.Setns(int(ns.Fd()), unix.CLONE_NEWCGROUP)
		_ = ns.Close()
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

// removeCgroup removes the cgroup of a daemon, and kills any processes left in it.
func (p Processes) removeCgroup(ctx context.Context, d Daemon) error {
	if p.Cgroup == "" {
		return nil
	}
	dir := filepath.Join(p.Cgroup, d.GPU)
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			break
		}
		if !errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("remove the daemon's cgroup: %w", err)
		}
		// MPS has left processes behind. Kernels before 5.14 lack cgroup.kill; Sweep has killed those that it knows.
		err = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("kill the processes in the daemon's cgroup: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("processes in %s do not end; check whether they hang in the driver (dmesg)", dir)
		}
	}
	_ = os.Remove(p.Cgroup) // unless it holds others
	return nil
}
