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
func (g *gpuLock) close() {
	for _, file := range g.files {
		_ = file.Close()
	}
}

// openNodeLocks opens the locks of a plugin that shares one directory and locks those of names, too.
func openNodeLocks(t *testing.T, shared string, names ...string) *Locks {
	t.Helper()
	for _, dir := range names {
		must(t, os.MkdirAll(dir, 0o700))
	}
	l, err := OpenNodeLocks(shared, func() []string { return names })
	must(t, err)
	return l
}

// A plugin of each name, and one of each name of a release that locks in its own directory only, lock one GPU.
func TestNodeLocks_ExcludeEveryNameAndRelease(t *testing.T) {
	dir := t.TempDir()
	shared, a, b := filepath.Join(dir, "shared"), filepath.Join(dir, "a"), filepath.Join(dir, "b")
	pairs := map[string][2]*Locks{
		"two names":                     {openNodeLocks(t, shared, a, b), openNodeLocks(t, shared, a, b)},
		"an earlier release, same name": {openNodeLocks(t, shared, a, b), openLocks(t, a)},
		"an earlier release, other":     {openNodeLocks(t, shared, a, b), openLocks(t, b)},
		"only the shared one in common": {openNodeLocks(t, shared, a), openNodeLocks(t, shared, b)},
	}
	for name, pair := range pairs {
		t.Run(name, func(t *testing.T) { wantExcluded(t, pair[:]...) })
	}
}

func TestNodeLocks_StaleAfterEarlierRelease(t *testing.T) {
	dir := t.TempDir()
	shared, a, b := filepath.Join(dir, "shared"), filepath.Join(dir, "a"), filepath.Join(dir, "b")
	l, earlier := openNodeLocks(t, shared, a, b), openLocks(t, b)
	take := func(l *Locks) bool {
		held := mustAcquire(t, l, "g")
		defer held.Release()
		held.Seen()
		return held.Stale
	}
	got := []bool{take(l), take(l), take(earlier), take(l), take(l)}
	if want := []bool{true, false, true, true, false}; !slices.Equal(got, want) {
		t.Errorf("Stale is %v, want %v", got, want)
	}
	l.Doubt()
	if got := []bool{take(l), take(l)}; !slices.Equal(got, []bool{true, false}) {
		t.Errorf("Stale after Doubt is %v, want once", got)
	}
}

// A lock on a file that was deleted excludes nobody.
func TestNodeLocks_DirectoryRemovedAndMadeAgain(t *testing.T) {
	dir := t.TempDir()
	shared, a := filepath.Join(dir, "shared"), filepath.Join(dir, "a")
	l := openNodeLocks(t, shared, a)
	mustAcquire(t, l, "g").Release()
	must(t, os.RemoveAll(a))
	mustAcquire(t, l, "g").Release() // nobody of that name is left
	earlier := openLocks(t, a)
	blocker := mustAcquire(t, earlier, "g")
	if _, err := l.Acquire(endsAfter(t.Context(), 1), []string{"g"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v: the earlier release holds the lock", err, context.Canceled)
	}
	blocker.Release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	held, err := l.Acquire(ctx, []string{"g"})
	must(t, err)
	held.Release()
}
