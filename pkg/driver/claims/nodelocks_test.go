// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// close is what the kernel does with a lock of a process that dies.
func (g *gpuLock) close() { _ = g.file.Close() }

// Plugins of all names lock in one directory.
func TestLocks_ExcludeOtherProcesses(t *testing.T) {
	dir := t.TempDir()
	wantExcluded(t, openLocks(t, dir), openLocks(t, dir))
}

func TestLocks_StaleAfterAnother(t *testing.T) {
	dir := t.TempDir()
	l, other := openLocks(t, dir), openLocks(t, dir)
	take := func(l *Locks) bool {
		held := mustAcquire(t, l, "g")
		defer held.Release()
		held.Seen()
		return held.Stale
	}
	got := []bool{take(l), take(l), take(other), take(l), take(l)}
	if want := []bool{true, false, true, true, false}; !slices.Equal(got, want) {
		t.Errorf("Stale is %v, want %v", got, want)
	}
}

// A lock on a file that was deleted excludes nobody.
func TestLocks_FileRemovedAndMadeAgain(t *testing.T) {
	dir := t.TempDir()
	l := openLocks(t, dir)
	mustAcquire(t, l, "g").Release()
	must(t, os.Remove(filepath.Join(dir, "g.lock")))
	other := openLocks(t, dir)
	blocker := mustAcquire(t, other, "g")
	if _, err := l.Acquire(endsAfter(t.Context(), 1), []string{"g"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v: another process holds the lock", err, context.Canceled)
	}
	blocker.Release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	held, err := l.Acquire(ctx, []string{"g"})
	must(t, err)
	held.Release()
}
