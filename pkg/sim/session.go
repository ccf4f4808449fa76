// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// NVML opens the driver with nvmlInit and a GPU with the first call on it, and closes both with the last nvmlShutdown. Any process
// with an open GPU prevents its reset, even an idle monitoring agent: "Monitoring application such as another instance of
// nvidia-smi" (nvidia-smi's manual, --gpu-reset); NVIDIA/gpu-operator#118, NVIDIA/NVSentinel#1690.
//
// For every open GPU, each Node has a file open with a shared lock. The kernel releases the lock when the process ends, in whatever
// way.

// driverSlot stands for the whole driver, besides the indexes of GPUs.
const driverSlot = maxGPUs

// sessions are the open GPUs and driver of a Node.
type sessions struct {
	files *Files
	inits atomic.Int64
	mask  atomic.Uint64 // bits of slots
	mu    sync.Mutex
	// locked are the files of open slots, with shared locks; nil for a node in memory.
	locked [driverSlot + 1]*os.File
	// nodes are the device nodes of the open GPUs, so that a search for users of a GPU finds them in /proc.
	nodes [driverSlot]*os.File
}

// end ends one session; the last one closes the driver and the GPUs.
func (s *sessions) end() error {
	for {
		now := s.inits.Load()
		if now == 0 {
			return fail("nvmlShutdown", CodeUninitialized, "nvmlInit_v2 was not called")
		}
		if s.inits.CompareAndSwap(now, now-1) {
			if now == 1 {
				s.closeSlots()
			}
			return nil
		}
	}
}

// isOpen reports whether this Node has a slot open.
func (s *sessions) isOpen(slot int) bool { return s.mask.Load()&(1<<slot) != 0 }

// openSlot opens a slot, once in a session.
func (s *sessions) openSlot(slot int) error {
	if s.isOpen(slot) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOpen(slot) || s.inits.Load() == 0 {
		return nil // another call has opened it, or the session has ended
	}
	if s.files.root != "" {
		f, err := s.openSession(slot)
		if err != nil {
			return err
		}
		if err := flock(f, syscall.LOCK_SH); err != nil {
			return errors.Join(err, f.Close())
		}
		s.locked[slot] = f
		if slot < driverSlot {
			s.nodes[slot] = s.files.openDeviceNode(slot)
		}
	}
	s.mask.Or(1 << slot)
	return nil
}

// openSession opens the file of a slot. A root may be older than these files.
func (s *sessions) openSession(slot int) (*os.File, error) {
	path := s.files.sessionFile(slot)
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644) //nolint:gosec // anyone may lock it
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	return f, nil
}

// closeSlots closes the session's slots, after the last Shutdown.
func (s *sessions) closeSlots() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inits.Load() > 0 {
		return // a new session has started
	}
	s.mask.Store(0)
	for slot, f := range s.locked {
		if f != nil {
			_ = f.Close() // releases the lock; nothing was written
			s.locked[slot] = nil
		}
	}
	for slot, f := range s.nodes {
		if f != nil {
			_ = f.Close()
			s.nodes[slot] = nil
		}
	}
}

// errOpen is the error of alone for a slot that others have open.
var errOpen = errors.New("open in other processes")

// alone makes sure that no other Node has a slot open, and that none opens it until release. This Node's own slots stay open and do
// not count.
func (s *sessions) alone(slot int) (release func(), err error) {
	if s.files.root == "" {
		return func() {}, nil // a node in memory has no other users
	}
	s.mu.Lock()
	own := s.locked[slot]
	f := own
	if f == nil {
		if f, err = s.openSession(slot); err != nil {
			s.mu.Unlock()
			return nil, err
		}
	}
	release = func() {
		defer s.mu.Unlock()
		if own == nil {
			_ = f.Close() // gives the lock back
			return
		}
		_ = flock(f, syscall.LOCK_SH) // cannot fail for an open, lockable file
	}
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return release, nil
	}
	release() // flock(2): a failed change of the lock may lose it
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errOpen
	}
	return nil, err
}

// flock locks a file as a whole.
func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// Session is a process that has a GPU open.
type Session struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}

// of lists the processes that have a slot open and are visible in /proc.
func (s *sessions) of(slot int) []Session {
	if s.files.root == "" {
		return nil
	}
	var st syscall.Stat_t
	if err := syscall.Stat(s.files.sessionFile(slot), &st); err != nil {
		return nil
	}
	data, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	var found []Session
	for line := range strings.Lines(string(data)) {
		// "1: FLOCK  ADVISORY  READ 4711 fd:01:5243 0 EOF"
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "READ" || !strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10)) {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 {
			continue // in an invisible PID namespace
		}
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // the process may have just ended
		found = append(found, Session{PID: pid, Name: strings.TrimSpace(string(comm))})
	}
	return found
}

// who formats the processes that have a slot open: "process 71 (dcgm)".
func (s *sessions) who(slot int) string {
	found := s.of(slot)
	if len(found) == 0 {
		return "another process"
	}
	words := make([]string, 0, len(found))
	for _, f := range found {
		words = append(words, fmt.Sprintf("process %d (%s)", f.PID, f.Name))
	}
	return strings.Join(words, ", ")
}
