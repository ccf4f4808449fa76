// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// close is what the kernel does with a lock of a process that dies.
func (g *gpuLock) close() { _ = g.file.Close() }

func openLocks(t *testing.T, dir string) *Locks {
	t.Helper()
	l, err := OpenLocks(dir)
	if err != nil {
		t.Fatalf("OpenLocks: %v", err)
	}
	return l
}

func mustAcquire(t *testing.T, l *Locks, names ...string) *Held {
	t.Helper()
	held, err := l.Acquire(t.Context(), names)
	if err != nil {
		t.Fatalf("Acquire %v: %v", names, err)
	}
	return held
}

// looks is a context that ends when it has been looked at so many times: no clock decides when a wait is given up.
type looks struct {
	context.Context
	left atomic.Int32
	done chan struct{}
}

func endsAfter(ctx context.Context, n int32) *looks {
	c := &looks{Context: ctx, done: make(chan struct{})}
	c.left.Store(n)
	return c
}

func (c *looks) Done() <-chan struct{} {
	if c.left.Add(-1) == -1 {
		close(c.done)
	}
	return c.done
}

func (c *looks) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

func TestLocks_Exclude(t *testing.T) {
	for name, processes := range map[string]int{"one process": 1, "two processes": 2, "three processes": 3} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var all []*Locks
			for range processes {
				all = append(all, openLocks(t, dir))
			}
			var inside, crowded atomic.Int32
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					for range 50 {
						held, err := all[i%len(all)].Acquire(context.Background(), []string{"b", "a", "b"})
						if err != nil {
							t.Errorf("Acquire: %v", err)
							return
						}
						if inside.Add(1) > 1 {
							crowded.Add(1)
						}
						runtime.Gosched()
						inside.Add(-1)
						held.Release()
					}
				})
			}
			wg.Wait()
			if n := crowded.Load(); n > 0 {
				t.Errorf("%d times two held the locks at once", n)
			}
		})
	}
}

func TestAcquire_ContextEndsInThisProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLocks(t, t.TempDir())
		held := mustAcquire(t, l, "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := l.Acquire(ctx, []string{"a", "b"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		wantError(t, err, "lock GPU b")
		mustAcquire(t, l, "a").Release() // given back though the second failed
		held.Release()
		mustAcquire(t, l, "a", "b").Release()
	})
}

func TestAcquire_ContextEndsInAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	one, two := openLocks(t, dir), openLocks(t, dir)
	held := mustAcquire(t, two, "a")
	_, err := one.Acquire(endsAfter(t.Context(), 1), []string{"a"}) // ends at the look in flock
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
	held.Release()
	// The wait in the kernel that was given up must not keep the lock.
	mustAcquire(t, one, "a").Release()
	mustAcquire(t, two, "a").Release()
	mustAcquire(t, one, "a").Release()
}

func TestRelease_Repeated(t *testing.T) {
	l := openLocks(t, t.TempDir())
	held := mustAcquire(t, l, "a")
	held.Release()
	held.Release()
	mustAcquire(t, l, "a").Release()
}

func TestLocks_FilesStayInDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l := openLocks(t, dir)
	for _, name := range []string{"../../outside", "/etc/passwd", "a/b"} {
		mustAcquire(t, l, name).Release()
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(entries) != 1 {
		t.Errorf("outside the directory: got %v, %v, want nothing", entries, err)
	}
}

func TestLocks_FileIsLink(t *testing.T) {
	dir := t.TempDir()
	l := openLocks(t, dir)
	must(t, os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), filepath.Join(dir, "a.lock")))
	_, err := l.Acquire(t.Context(), []string{"a"})
	wantError(t, err, "lock GPU a")
	mustAcquire(t, l, "b").Release()
}

func TestOpenLocks_DirectoryCannotBeCreated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	_, err := OpenLocks(filepath.Join(file, "locks"))
	wantError(t, err, "create the directory for GPU locks")
}

// The locks lie on the same disk as the records: where it is full, the first lock of a GPU fails before any record.
func TestPrepare_DiskTooFullForLock(t *testing.T) {
	b := newBed(t)
	full := filepath.Join(b.dir, "locks", gpuName(1)+".lock")
	if err := syscall.Mknod(full, syscall.S_IFCHR|0o600, 1<<8|7); err != nil { // like /dev/full: every write is ENOSPC
		t.Skipf("needs the right to make a device node: %v", err)
	}
	if f, err := os.OpenFile(full, os.O_RDWR, 0); err != nil {
		t.Skipf("needs device nodes to work in the temporary directory: %v", err)
	} else {
		_ = f.Close()
	}
	_, err := b.Prepare(t.Context(), claimOn("a", 1))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v, want ENOSPC", err)
	}
	wantError(t, err, "free space", b.dir)
	must(t, os.Remove(full))
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
