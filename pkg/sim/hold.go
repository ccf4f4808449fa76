// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// Hold is this process as a client of GPUs. A real kernel driver notices when a process ends, in whatever way. Here the process
// locks a file, and finding it unlocked shows its end.
type Hold struct {
	node *core
	name string
	file *os.File // nil: the node is in memory
	gpus []int
	open []*os.File // capability nodes
}

// Hold registers this process as a client, without any GPU yet.
func (cs *Clients) Hold(name string) (*Hold, error) {
	h := &Hold{node: cs.core, name: name}
	if cs.files.root == "" {
		return h, nil
	}
	f, err := os.OpenFile(cs.files.holdFile(os.Getpid()), os.O_RDWR|os.O_CREATE, 0o644) //nolint:gosec // anyone may check the lock
	if err != nil {
		return nil, fmt.Errorf("hold GPUs: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("hold GPUs: lock %s: %w", f.Name(), err), f.Close())
	}
	h.file = f
	return h, nil
}

// Use makes the process a client of a GPU, or of a partition if gi is not negative, or changes how much memory it
// uses there.
func (h *Hold) Use(index, gi, ci int, memory uint64) error {
	return h.add(index, Client{PID: os.Getpid(), Name: h.name, Memory: memory, GPUInstance: gi, ComputeInstance: ci, Held: h.file != nil})
}

// Burn is Use, and how busy the process keeps the GPU or partition from now on.
func (h *Hold) Burn(index, gi, ci int, memory uint64, load Load) error {
	if err := load.check(); err != nil {
		return err
	}
	return h.add(index, Client{
		PID: os.Getpid(), Name: h.name, Memory: memory, GPUInstance: gi, ComputeInstance: ci, Held: h.file != nil, Load: &load,
	})
}

// Leak makes the process keep a GPU instance open, like DCGM does with those that it no longer watches. NVML does not list it.
func (h *Hold) Leak(index, gi int) error {
	c := Client{PID: os.Getpid(), Name: h.name, GPUInstance: gi, ComputeInstance: -1, Leaked: true, Held: h.file != nil}
	if err := h.add(index, c); err != nil {
		return err
	}
	if !h.node.spec.DeviceNodes {
		return nil
	}
	file, err := h.node.files.openCapability(h.node.spec.GPUs[index].Minor, gi)
	if err == nil {
		h.open = append(h.open, file)
	}
	return err
}

func (h *Hold) add(index int, c Client) error {
	if err := h.node.clients.Add(index, c); err != nil {
		return err
	}
	if !slices.Contains(h.gpus, index) {
		h.gpus = append(h.gpus, index)
	}
	return nil
}

// Check reports external causes that have ended the hold: a GPU fell off the bus, or the node was rebooted. A process on a real
// node would have been killed.
func (h *Hold) Check() error {
	node, err := h.node.state.load()
	if err != nil {
		return err
	}
	for _, i := range h.gpus {
		if slices.Contains(node.Lost, i) {
			return fail("", CodeGPUIsLost, "GPU %d fell off the bus", i)
		}
		st, err := h.node.gpus[i].load()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(st.Clients, func(c Client) bool { return c.PID == os.Getpid() }) {
			return fmt.Errorf("GPU %d no longer knows process %d", i, os.Getpid())
		}
	}
	return nil
}

// Close ends it.
func (h *Hold) Close() error {
	var errs []error
	for _, i := range h.gpus {
		if err := h.node.clients.Remove(i, os.Getpid()); err != nil && !errors.Is(err, errNoClient) {
			errs = append(errs, err)
		}
	}
	for _, f := range h.open {
		errs = append(errs, f.Close())
	}
	h.gpus, h.open = nil, nil
	if h.file != nil {
		errs = append(errs, os.Remove(h.file.Name()), h.file.Close())
	}
	return errors.Join(errs...)
}

// alive reports whether a client still exists.
func (cs *Clients) alive(c Client) bool {
	if !c.Held {
		return true // unknown for a client that was only declared
	}
	f, err := os.Open(cs.files.holdFile(c.PID))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	// Shared, so that two checks do not mistake each other for the process.
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

// abandoned reports whether a GPU has clients that have ended.
func (cs *Clients) abandoned(st *gpuState) bool {
	for i := range st.Clients {
		if st.Clients[i].Held && !cs.alive(st.Clients[i]) {
			return true
		}
	}
	return false
}

// forget removes clients that have ended.
func (cs *Clients) forget(b *Board, st *gpuState) {
	st.account(b, cs.microseconds())
	st.Clients = slices.DeleteFunc(st.Clients, func(c Client) bool { return !cs.alive(c) })
}
