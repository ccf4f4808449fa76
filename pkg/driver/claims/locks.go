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

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Locks are one lock per GPU that hold across goroutines and across processes: in a rolling update, two plugins serve
// the same node concurrently. The files outlive their holders; the kernel releases a lock when its holder dies.
//
// Each file's content is the id of the process that held the lock last. So a process knows, without listing anything,
// whether another one may have changed what is allocated of that GPU since it looked.
type Locks struct {
	// dir has a file for each GPU. All plugins of a node share it, whatever their driver's name.
	dir  string
	self []byte

	mu    sync.Mutex
	byGPU map[string]*gpuLock
}

// gpuLock is the lock of one GPU. The semaphore is for goroutines, the file for processes; it guards all else.
type gpuLock struct {
	semaphore chan struct{}
	file      *os.File
	// stale: another process held the lock and nobody has looked yet at what it did.
	stale bool
}

const instanceIDSize = 16

// OpenLocks uses the lock files in a directory, which it creates if need be.
func OpenLocks(dir string) (*Locks, error) {
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for GPU locks: %w", err)
	}
	self := make([]byte, instanceIDSize)
	_, _ = rand.Read(self) // never fails: https://pkg.go.dev/crypto/rand#Read
	return &Locks{dir: dir, self: self, byGPU: map[string]*gpuLock{}}, nil
}

// Held is a set of locks that are held.
type Held struct {
	locks []*gpuLock
	// Stale: another process, or an earlier life of this one, held one of the locks in between.
	Stale bool
}

// Acquire takes the locks of the named GPUs, in the order of names so that two callers cannot wait for each other.
// It waits until ctx ends.
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
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := lock.flock(ctx, filepath.Join(l.dir, filepath.Base(name)+".lock")); err != nil {
		return err
	}
	held.locks = append(held.locks, lock)
	last := make([]byte, instanceIDSize)
	n, _ := lock.file.ReadAt(last, 0) // a short file is a lock nobody held yet
	if n != instanceIDSize || !slices.Equal(last, l.self) {
		lock.stale = true
		if _, err := lock.file.WriteAt(l.self, 0); err != nil {
			return fmt.Errorf("write the holder's id: %w", err)
		}
	}
	held.Stale = held.Stale || lock.stale
	return nil
}

// Seen notes that the caller knows now what is allocated of the GPUs. Until then every Acquire reports Stale again.
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
		l.byGPU[name] = &gpuLock{semaphore: make(chan struct{}, 1)}
	}
	return l.byGPU[name]
}

// flock locks the GPU's file; the caller holds the semaphore, which is given back when this fails: at once, or when nothing
// waits in the kernel any more. A file that was deleted meanwhile locks nothing: whoever comes next creates a new one.
func (g *gpuLock) flock(ctx context.Context, path string) (err error) {
	for {
		if g.file == nil {
			if g.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err != nil {
				<-g.semaphore
				return err
			}
		}
		if waiting, err := flockFile(ctx, g.file); err != nil {
			g.giveUp(waiting)
			return err
		}
		if store.IsAt(g.file, path) {
			return nil
		}
		_ = g.file.Close() // and its lock with it
		g.file = nil
	}
}

// giveUp gives the semaphore back once nothing waits in the kernel; nil for nothing.
func (g *gpuLock) giveUp(waiting <-chan struct{}) {
	if waiting == nil {
		<-g.semaphore
		return
	}
	go func() {
		<-waiting
		<-g.semaphore
	}()
}

// flockFile takes the lock of a file. While another process holds it, a goroutine waits in the kernel; should ctx end
// first, that goroutine goes on to take the lock, gives it back at once, so none is ever held by nobody, and closes
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
		return ended, fmt.Errorf("another plugin process holds it: %w", ctx.Err())
	}
}

// Release gives the locks back, last taken first.
func (h *Held) Release() {
	for _, lock := range slices.Backward(h.locks) {
		_ = store.Flock(lock.file, syscall.LOCK_UN)
		<-lock.semaphore
	}
	h.locks = nil
}
