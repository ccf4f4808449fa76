// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	mask atomic.Uint64 // bits of slots
	mu   sync.Mutex
	// files are locked, shared; nil for a node in memory.
	files [driverSlot + 1]*os.File
}

// sessionFile is what those who have a GPU or the driver open have locked.
func (n *Node) sessionFile(slot int) string {
	name := "gpu-" + strconv.Itoa(slot) + ".open"
	if slot == driverSlot {
		name = "driver.open"
	}
	return filepath.Join(n.root, stateDir, name)
}

// isOpen reports whether this Node has a slot open.
func (n *Node) isOpen(slot int) bool { return n.open.mask.Load()&(1<<slot) != 0 }

// openSlot opens a slot, once in a session.
func (n *Node) openSlot(slot int) error {
	if n.isOpen(slot) {
		return nil
	}
	n.open.mu.Lock()
	defer n.open.mu.Unlock()
	if n.isOpen(slot) || n.inits.Load() == 0 {
		return nil // by another call meanwhile, or the session has ended
	}
	if n.root != "" {
		f, err := n.openSession(slot)
		if err != nil {
			return err
		}
		if err := flock(f, syscall.LOCK_SH); err != nil {
			return errors.Join(err, f.Close())
		}
		n.open.files[slot] = f
	}
	n.open.mask.Or(1 << slot)
	return nil
}

// openSession opens the file of a slot. A root may be older than these files.
func (n *Node) openSession(slot int) (*os.File, error) {
	path := n.sessionFile(slot)
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644) //nolint:gosec // everybody may lock it
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	return f, nil
}

// closeSlots ends what the session has open, after the last Shutdown.
func (n *Node) closeSlots() {
	n.open.mu.Lock()
	defer n.open.mu.Unlock()
	if n.inits.Load() > 0 {
		return // somebody has begun anew
	}
	n.open.mask.Store(0)
	for slot, f := range n.open.files {
		if f != nil {
			_ = f.Close() // gives the lock back; nothing was written
			n.open.files[slot] = nil
		}
	}
}

// errOpen is what alone returns for a slot that others have open.
var errOpen = errors.New("open in other processes")

// alone makes sure that no other Node has a slot open, and that none opens it until release. What this Node has open
// stays open and does not count.
func (n *Node) alone(slot int) (release func(), err error) {
	if n.root == "" {
		return func() {}, nil // nobody else has a node in memory
	}
	n.open.mu.Lock()
	own := n.open.files[slot]
	f := own
	if f == nil {
		if f, err = n.openSession(slot); err != nil {
			n.open.mu.Unlock()
			return nil, err
		}
	}
	release = func() {
		defer n.open.mu.Unlock()
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

// sessionsOf lists the processes that have a slot open, as far as /proc shows them here.
func (n *Node) sessionsOf(slot int) []Session {
	if n.root == "" {
		return nil
	}
	var st syscall.Stat_t
	if err := syscall.Stat(n.sessionFile(slot), &st); err != nil {
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

// whoHasOpen words the processes that have a slot open: "process 71 (dcgm)".
func (n *Node) whoHasOpen(slot int) string {
	found := n.sessionsOf(slot)
	if len(found) == 0 {
		return "another process"
	}
	words := make([]string, 0, len(found))
	for _, s := range found {
		words = append(words, fmt.Sprintf("process %d (%s)", s.PID, s.Name))
	}
	return strings.Join(words, ", ")
}
