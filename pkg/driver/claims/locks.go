// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Locks are one lock per GPU, valid across goroutines and processes: during a rolling update, two plugins serve
// the same node concurrently. The files outlive the processes that lock them; the kernel releases a lock when its process dies.
//
// Each file contains the ID of the process that last held the lock. So a process knows, without listing anything,
// whether another one may have changed the allocations on that GPU since it last checked.
type Locks struct {
	// dir has a file for each GPU. All plugins of a node share it, whatever their driver name.
	dir  string
	self []byte
	// foreign bounds the wait for another process.
	foreign time.Duration

	mu    sync.Mutex
	byGPU map[string]*gpuLock
}

// foreignTime is how long a plugin waits for one that it replaces, whose longest call takes 45 s (the kubelet's timeout). A process that
// was killed keeps its locks for as long as one of its threads hangs in the driver: nothing else of the node may wait for that.
const foreignTime = 20 * time.Second

// errForeign: another process has locked a GPU for long.
var errForeign = errors.New("locked by another plugin process, which may have been killed and hang in the driver")

// gpuLock is the lock of one GPU. The semaphore is for goroutines and guards the other fields, the file is for processes.
type gpuLock struct {
	semaphore chan struct{}
	file      *os.File
	// stale: another process held the lock, and its changes have not been read yet.
	stale bool

	mu sync.Mutex
	// away is closed while another process has had the lock for long, and a goroutine waits for it in the kernel, with the semaphore.
	away chan struct{}
}

const instanceIDSize = 16

// OpenLocks uses the lock files in a directory, creating the directory if necessary.
func OpenLocks(dir string) (*Locks, error) {
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for GPU locks: %w", err)
	}
	self := make([]byte, instanceIDSize)
	_, _ = rand.Read(self) // never fails: https://pkg.go.dev/crypto/rand#Read
	return &Locks{dir: dir, self: self, foreign: foreignTime, byGPU: map[string]*gpuLock{}}, nil
}

// Held is a set of locked GPUs.
type Held struct {
	locks []*gpuLock
	// Stale: another process, or an earlier run of this one, held one of the locks in between.
	Stale bool
}

// Acquire locks the named GPUs, in order of their names so that two callers cannot deadlock. It waits until ctx ends, or until another
// process has had one of the locks for long.
func (l *Locks) Acquire(ctx context.Context, names []string) (*Held, error) {
	names = slices.Clone(names)
	slices.Sort(names)
	held := &Held{}
	for _, name := range slices.Compact(names) {
		if err := l.acquireOne(ctx, name, held); err != nil {
			held.Release()
			return nil, fmt.Errorf("lock GPU %s: %w", name, err)
		}
	}
	return held, nil
}

func (l *Locks) acquireOne(ctx context.Context, name string, held *Held) error {
	lock := l.get(name)
	select {
	case lock.semaphore <- struct{}{}:
	case <-lock.isAway():
		return errForeign
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.foreign, errForeign)
	defer cancel()
	if err := lock.flock(ctx, filepath.Join(l.dir, filepath.Base(name)+".lock"), l.foreign); err != nil {
		return err
	}
	held.locks = append(held.locks, lock)
	last := make([]byte, instanceIDSize)
	n, _ := lock.file.ReadAt(last, 0) // a short file is a lock that was never held
	if n != instanceIDSize || !slices.Equal(last, l.self) {
		lock.stale = true
		if _, err := lock.file.WriteAt(l.self, 0); err != nil {
			return fmt.Errorf("write the ID of the lock's owner: %w", err)
		}
	}
	held.Stale = held.Stale || lock.stale
	return nil
}

// Seen notes that the caller has read the allocations of the GPUs. Until then every Acquire reports Stale again.
func (h *Held) Seen() {
	for _, lock := range h.locks {
		lock.stale = false
	}
}

// get creates the lock of a GPU once.
func (l *Locks) get(name string) *gpuLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byGPU[name] == nil {
		l.byGPU[name] = &gpuLock{semaphore: make(chan struct{}, 1), away: make(chan struct{})}
	}
	return l.byGPU[name]
}

// flock locks the GPU's file. The caller holds the semaphore, which is released on failure: immediately, or when no goroutine
// waits in the kernel any more. A file that was deleted meanwhile locks nothing: the next caller creates a new one.
func (g *gpuLock) flock(ctx context.Context, path string, foreign time.Duration) (err error) {
	for {
		if g.file == nil {
			if g.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err != nil {
				<-g.semaphore
				return err
			}
		}
		if waiting, err := flockFile(ctx, g.file); err != nil {
			if errors.Is(err, errForeign) {
				foreign = 0 // it has been waited for
			}
			g.giveUp(waiting, foreign)
			return err
		}
		if store.IsAt(g.file, path) {
			return nil
		}
		_ = g.file.Close() // also releases its lock
		g.file = nil
	}
}

// giveUp releases the semaphore once no goroutine waits in the kernel; waiting is nil if none does. After some more time, others do not
// wait for that either: another process has had the lock for long, even if the one who gave up had little time.
func (g *gpuLock) giveUp(waiting <-chan struct{}, after time.Duration) {
	if waiting == nil {
		<-g.semaphore
		return
	}
	go func() {
		select {
		case <-waiting:
		case <-time.After(after):
			g.mu.Lock()
			close(g.away)
			g.mu.Unlock()
			<-waiting
			g.mu.Lock()
			g.away = make(chan struct{})
			g.mu.Unlock()
		}
		<-g.semaphore
	}()
}

// isAway returns a channel that is closed while another process has had the lock for long.
func (g *gpuLock) isAway() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.away
}

// flockFile locks a file. While another process holds the lock, a goroutine waits in the kernel; if ctx ends
// first, that goroutine still takes the lock, but releases it immediately, so that it is never held without an owner, and closes
// waiting.
func flockFile(ctx context.Context, file *os.File) (waiting <-chan struct{}, err error) {
	err = store.Flock(file, syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- store.Flock(file, syscall.LOCK_EX) }()
	select {
	case err := <-done:
		return nil, err
	case <-ctx.Done():
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := <-done; err == nil {
				_ = store.Flock(file, syscall.LOCK_UN)
			}
		}()
		return ended, foreign(ctx)
	}
}

// foreign is why a wait for another process ended.
func foreign(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errForeign) {
		return cause
	}
	return fmt.Errorf("locked by another plugin process: %w", ctx.Err())
}

// Release releases the locks in reverse order.
func (h *Held) Release() {
	for _, lock := range slices.Backward(h.locks) {
		_ = store.Flock(lock.file, syscall.LOCK_UN)
		<-lock.semaphore
	}
	h.locks = nil
}
