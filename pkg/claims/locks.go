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
)

// Locks are one lock per GPU that hold across goroutines and across processes: in a rolling update, two plugins serve
// the same node side by side. The files outlive their holders; the kernel lets go of a lock when its holder dies.
//
// Each file's content is the id of the process that held the lock last. So a process knows, without listing anything,
// whether another one may have changed what that GPU holds since it looked.
type Locks struct {
	dir  string
	self []byte

	mu    sync.Mutex
	byGPU map[string]*gpuLock
}

// gpuLock is the lock of one GPU. The semaphore is for goroutines, the file for processes.
type gpuLock struct {
	semaphore chan struct{}
	file      *os.File
	// stale: another process held the lock and nobody has looked yet at what it did. Guarded by the lock itself.
	stale bool
}

const instanceIDSize = 16

// OpenLocks uses the lock files in a folder, which it makes if need be.
func OpenLocks(dir string) (*Locks, error) {
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for GPU locks: %w", err)
	}
	self := make([]byte, instanceIDSize)
	_, _ = rand.Read(self) // never fails: https://pkg.go.dev/crypto/rand#Read
	return &Locks{dir: dir, self: self, byGPU: map[string]*gpuLock{}}, nil
}

// Held is a set of locks that are held.
type Held struct {
	locks []*gpuLock
	// Foreign tells that another process, or an earlier life of this one, held one of the locks in between.
	Foreign bool
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
	lock, err := l.get(name)
	if err != nil {
		return err
	}
	select {
	case lock.semaphore <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := lock.flock(ctx); err != nil {
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
	held.Foreign = held.Foreign || lock.stale
	return nil
}

// Seen notes that the caller knows now what the GPUs hold. Until then every Acquire tells Foreign again.
func (h *Held) Seen() {
	for _, lock := range h.locks {
		lock.stale = false
	}
}

// get opens the lock file of a GPU once.
func (l *Locks) get(name string) (*gpuLock, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lock := l.byGPU[name]; lock != nil {
		return lock, nil
	}
	path := filepath.Join(l.dir, filepath.Base(name)+".lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	lock := &gpuLock{semaphore: make(chan struct{}, 1), file: file}
	l.byGPU[name] = lock
	return lock, nil
}

// flock takes the lock of the file; the caller holds the semaphore, which is given back when this fails. While
// another process holds it, a goroutine waits in the kernel; should ctx end first, that goroutine goes on to take the
// lock and gives both back at once, so none is ever held by nobody.
func (g *gpuLock) flock(ctx context.Context) error {
	err := flockRetry(g.file, syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		<-g.semaphore
		return err
	}
	done := make(chan error, 1)
	go func() { done <- flockRetry(g.file, syscall.LOCK_EX) }()
	select {
	case err := <-done:
		if err != nil {
			<-g.semaphore
		}
		return err
	case <-ctx.Done():
		go func() {
			if err := <-done; err == nil {
				_ = flockRetry(g.file, syscall.LOCK_UN)
			}
			<-g.semaphore
		}()
		return fmt.Errorf("another plugin process holds it: %w", ctx.Err())
	}
}

// flockRetry repeats a call that a signal interrupted.
func flockRetry(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Release gives the locks back, last taken first.
func (h *Held) Release() {
	for _, lock := range slices.Backward(h.locks) {
		_ = flockRetry(lock.file, syscall.LOCK_UN)
		<-lock.semaphore
	}
	h.locks = nil
}
