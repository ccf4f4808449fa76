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

// NVML opens the driver with nvmlInit and a GPU with the first call on it, and closes both with the last nvmlShutdown.
// Whoever has a GPU open keeps it from being reset, an idle monitoring agent too: "Monitoring application such as another
// instance of nvidia-smi" (nvidia-smi's manual, --gpu-reset); NVIDIA/gpu-operator#118, NVIDIA/NVSentinel#1690.
//
// Each Node has a file of its own open and locked for every GPU that it has open, shared with the other processes. The
// kernel gives the lock back when the process ends, however it ends.

// driverSlot stands for the driver as a whole, alongside the indexes of GPUs.
const driverSlot = maxGPUs

// sessions are what a Node has open.
type sessions struct {
	files *Files
	inits atomic.Int64
	mask  atomic.Uint64 // bits of slots
	mu    sync.Mutex
	// locked are the files of slots that are open, locked, shared; nil for a node in memory.
	locked [driverSlot + 1]*os.File
	// nodes are the device nodes of the GPUs that are open: who looks for users of a GPU finds them in /proc.
	nodes [driverSlot]*os.File
}

// end ends one session; with the last, the driver and the GPUs are open no more.
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
		return nil // by another call meanwhile, or the session has ended
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
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644) //nolint:gosec // everybody may lock it
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	return f, nil
}

// closeSlots ends what the session has open, after the last Shutdown.
func (s *sessions) closeSlots() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inits.Load() > 0 {
		return // somebody has begun anew
	}
	s.mask.Store(0)
	for slot, f := range s.locked {
		if f != nil {
			_ = f.Close() // gives the lock back; nothing was written
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

// errOpen is what alone returns for a slot that others have open.
var errOpen = errors.New("open in other processes")

// alone makes sure that no other Node has a slot open, and that none opens it until release. What this Node has open
// stays open and does not count.
func (s *sessions) alone(slot int) (release func(), err error) {
	if s.files.root == "" {
		return func() {}, nil // nobody else has a node in memory
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
		_ = flock(f, syscall.LOCK_SH) // of an open file that can be locked
	}
	err = flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return release, nil
	}
	release() // flock(2): a change of the lock that fails may lose the lock
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

// of lists the processes that have a slot open, as far as /proc shows them here.
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
			continue // in a PID namespace that cannot be seen from here
		}
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // a process may have just ended
		found = append(found, Session{PID: pid, Name: strings.TrimSpace(string(comm))})
	}
	return found
}

// who words the processes that have a slot open: "process 71 (dcgm)".
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
