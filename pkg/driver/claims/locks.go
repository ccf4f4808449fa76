// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Locks are one lock per GPU that hold across goroutines and across processes: in a rolling update, two plugins serve
// the same node concurrently. The files outlive their holders; the kernel releases a lock when its holder dies.
//
// Each file's content is the id of the process that held the lock last. So a process knows, without listing anything,
// whether another one may have changed what is allocated of that GPU since it looked.
//
// A lock is one file in each of several directories: one that all plugins of a node share, whatever their driver's name,
// and those of the names, where releases that know no shared one lock.
type Locks struct {
	// dirs are the directories of lock files, in the order in which files are locked; the first one is always there.
	dirs func() []string
	self []byte
	// doubts is raised when memory may lack what disk has, see Doubt.
	doubts atomic.Uint64

	mu    sync.Mutex
	byGPU map[string]*gpuLock
}

// gpuLock is the lock of one GPU. The semaphore is for goroutines, the files for processes; it guards all else.
type gpuLock struct {
	semaphore chan struct{}
	files     map[string]*os.File // by directory
	held      []*os.File
	// stale: another process held the lock and nobody has looked yet at what it did.
	stale bool
	// settled are the doubts at the last look.
	settled uint64
}

const instanceIDSize = 16

// OpenLocks uses the lock files in a directory, which it creates if need be.
func OpenLocks(dir string) (*Locks, error) {
	return OpenNodeLocks(dir, func() []string { return nil })
}

// OpenNodeLocks uses the lock files in a directory that all plugins of a node share, which it creates if need be, and
// after it those in the directories of names, in their order: it is asked for at each Acquire, and they may vanish.
func OpenNodeLocks(shared string, names func() []string) (*Locks, error) {
	shared = filepath.Clean(shared)
	if err := os.MkdirAll(shared, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for GPU locks: %w", err)
	}
	self := make([]byte, instanceIDSize)
	_, _ = rand.Read(self) // never fails: https://pkg.go.dev/crypto/rand#Read
	dirs := func() []string { return append([]string{shared}, names()...) }
	return &Locks{dirs: dirs, self: self, byGPU: map[string]*gpuLock{}}, nil
}

// Doubt has every Acquire report Stale once more: there are records on disk that nobody has looked at.
func (l *Locks) Doubt() { l.doubts.Add(1) }

// Held is a set of locks that are held.
type Held struct {
	locks []*gpuLock
	// doubts when the locks were taken.
	doubts uint64
	// Stale: another process, or an earlier life of this one, held one of the locks in between.
	Stale bool
}

// Acquire takes the locks of the named GPUs, in the order of names so that two callers cannot wait for each other.
// It waits until ctx ends.
func (l *Locks) Acquire(ctx context.Context, names []string) (*Held, error) {
	if withoutLocks {
		return &Held{}, nil
	}
	names = slices.Clone(names)
	slices.Sort(names)
	held := &Held{doubts: l.doubts.Load()}
	dirs := l.dirs()
	for _, name := range slices.Compact(names) {
		if err := l.acquireOne(ctx, dirs, name, held); err != nil {
			held.Release()
			return nil, fmt.Errorf("lock GPU %s: %w", name, err)
		}
	}
	return held, nil
}

func (l *Locks) acquireOne(ctx context.Context, dirs []string, name string, held *Held) error {
	lock := l.get(name)
	select {
	case lock.semaphore <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := lock.flock(ctx, dirs, filepath.Base(name)+".lock"); err != nil {
		return err
	}
	held.locks = append(held.locks, lock)
	for _, file := range lock.held {
		last := make([]byte, instanceIDSize)
		n, _ := file.ReadAt(last, 0) // a short file is a lock nobody held yet
		if n == instanceIDSize && slices.Equal(last, l.self) {
			continue
		}
		lock.stale = true
		if _, err := file.WriteAt(l.self, 0); err != nil {
			return fmt.Errorf("write the holder's id: %w", err)
		}
	}
	held.Stale = held.Stale || lock.stale || lock.settled != held.doubts
	return nil
}

// Seen notes that the caller knows now what is allocated of the GPUs. Until then every Acquire reports Stale again.
func (h *Held) Seen() {
	for _, lock := range h.locks {
		lock.stale, lock.settled = false, h.doubts
	}
}

// get creates the lock of a GPU once.
func (l *Locks) get(name string) *gpuLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byGPU[name] == nil {
		l.byGPU[name] = &gpuLock{semaphore: make(chan struct{}, 1), files: map[string]*os.File{}}
	}
	return l.byGPU[name]
}

// flock locks the GPU's file of each directory; the caller holds the semaphore, which is given back when this fails: at
// once, or when nothing waits in the kernel any more.
func (g *gpuLock) flock(ctx context.Context, dirs []string, name string) error {
	for i, dir := range dirs {
		waiting, err := g.flockIn(ctx, dir, name)
		if i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue // the state of a driver's name, which has just been removed
		}
		if err == nil {
			continue
		}
		g.unlock()
		if waiting == nil {
			<-g.semaphore
			return err
		}
		go func() {
			<-waiting
			<-g.semaphore
		}()
		return err
	}
	return nil
}

// flockIn locks the GPU's file of one directory. A file that was deleted meanwhile locks nothing: whoever comes next creates
// a new one.
func (g *gpuLock) flockIn(ctx context.Context, dir, name string) (waiting <-chan struct{}, err error) {
	path := filepath.Join(dir, name)
	for {
		file := g.files[dir]
		if file == nil {
			if file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err != nil {
				return nil, err
			}
			g.files[dir] = file
		}
		if waiting, err := flockFile(ctx, file); err != nil {
			return waiting, err
		}
		if store.IsAt(file, path) {
			g.held = append(g.held, file)
			return nil, nil //nolint:nilnil // nothing waits, and nothing failed
		}
		delete(g.files, dir)
		_ = file.Close() // and its lock with it
	}
}

// unlock unlocks what is locked, last first; the caller holds the semaphore.
func (g *gpuLock) unlock() {
	for _, file := range slices.Backward(g.held) {
		_ = store.Flock(file, syscall.LOCK_UN)
	}
	g.held = nil
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
		lock.unlock()
		<-lock.semaphore
	}
	h.locks = nil
}
