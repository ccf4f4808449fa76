// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// reservations are directories of tests that run, by the name of their cluster's directory.
const reservations = "/run/cleave-tests"

// reserved are the ways to give reservations back. The end of the process does it: they only keep the files open.
var reserved []func()

// Reserve waits until no other process has reserved a cluster's directory, and keeps it until this one ends. Up and Down lock the
// directory only while they work in it: two runs of one package's tests would take the cluster from each other.
func Reserve(ctx context.Context, dir string, out io.Writer) error {
	unlock, err := lock(ctx, filepath.Join(reservations, filepath.Base(dir)), out)
	reserved = append(reserved, unlock)
	return err
}

// lock creates a directory if need be and waits until no other program works in it.
// The lock is on the directory itself, so it goes with it and with its owner.
func lock(ctx context.Context, dir string, out io.Writer) (unlock func(), err error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for said := false; ; {
		unlock, busy, err := tryLock(dir)
		if err != nil || unlock != nil {
			return unlock, err
		}
		if busy && !said {
			fmt.Fprintf(out, "waiting for another program that works in %s\n", dir)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another program that works in %s: %w", dir, ctx.Err())
		case <-ticker.C:
		}
	}
}

// tryLock returns no way to unlock where another program has the lock, or had
// it and removed the directory.
func tryLock(dir string) (unlock func(), busy bool, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, false, fmt.Errorf("create the directory %s: %w", dir, err)
	}
	f, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("lock %s: %w", dir, err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil && sameDirectory(f, dir) {
		return func() { _ = f.Close() }, false, nil // closing gives the lock back
	}
	if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return nil, err != nil, f.Close()
}

func sameDirectory(f *os.File, dir string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	present, err := os.Stat(dir)
	return err == nil && os.SameFile(opened, present)
}
