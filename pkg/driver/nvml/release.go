// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// releaseWait bounds the wait of Release for running calls, including the wait for events: calls about other GPUs are blocked as
// long.
const releaseWait = 3 * time.Second

// Release closes a GPU, so that it can be reset: its calls fail with gpu.ErrReleased until Retake. The others stay usable, but
// their calls wait for a restart of NVML, which is the only way to close a GPU: nvmlInit_v2 works "without enumerating any
// discovered devices", and only "obtaining the device handle" opens one (nvml.h).
func (s *Session) Release(ctx context.Context, pci gpu.PCIAddress) error {
	s.rereading.Lock()
	defer s.rereading.Unlock()
	if _, err := s.inventory.handle(pci); errors.Is(err, gpu.ErrReleased) {
		return nil
	}
	s.inventory.setReleased(pci, true)
	s.stale.Store(true) // afterwards the next scan takes the handles that cannot be taken here, and reads the indexes, which may change
	klog.FromContext(ctx).V(4).Info("Closing a GPU", "pci", pci)
	err := s.calls.restart(ctx, s.root, releaseWait, func(opened nodes) []*watchdog { return s.calls.reopen(ctx, opened) })
	if err != nil {
		s.inventory.setReleased(pci, false)
		return fmt.Errorf("close the GPU at %s: %w", pci, err)
	}
	return nil
}

// Retake reopens a GPU after Release and rereads it.
func (s *Session) Retake(ctx context.Context, pci gpu.PCIAddress) error {
	s.rereading.Lock()
	defer s.rereading.Unlock()
	was := s.Node().Find(pci.DeviceName())
	s.inventory.setReleased(pci, false)
	if was == nil {
		return fmt.Errorf("open the GPU at %s: %w", pci, gpu.ErrNotFound)
	}
	dog := s.calls.dogs.of(was.Index)
	f, err := bounded(ctx, dog, fmt.Sprintf("reading GPU %d", was.Index), changeTimeout, true, func() (found, error) {
		return s.calls.read(was.Index, func() (Device, error) { return s.calls.lib.DeviceByPCI(pci) })
	})
	if err != nil {
		s.stale.Store(true) // the next scan tries again
		return fmt.Errorf("open the GPU at %s: %w", pci, err)
	}
	s.inventory.retake(f.gpu, handle{Device: f.dev, dog: dog, epoch: int(s.calls.epoch.Load())})
	s.calls.outdateEvents()
	return nil
}

// Usable reports why a present GPU cannot be used as published: it is released, or its mode has changed.
func (s *Session) Usable(g *gpu.GPU) error {
	if s.inventory.isReleased(g.PCI) {
		return fmt.Errorf("GPU %s: %w, which takes some seconds", g.UUID, gpu.ErrReleased)
	}
	if now := s.Node().Find(g.PCI.DeviceName()); now != nil && !now.MIG.SameMode(g.MIG) {
		return fmt.Errorf("GPU %s: %w since the device was published: delete the pod so that it is scheduled again", g.UUID, gpu.ErrModeChanged)
	}
	return nil
}

// reopen takes new handles of all GPUs that are not released, after a restart, and closes their device nodes. It goes by address, as the
// restart has changed indexes if a GPU has come or gone. It does not wait: calls about a GPU wait for it, as the watchdogs that it
// keeps are held until then, and one that hangs when it is opened has no other wait.
func (c *calls) reopen(ctx context.Context, opened nodes) (kept []*watchdog) {
	v := c.inventory
	handles, byDog := map[gpu.PCIAddress]handle{}, map[*watchdog][]func(){}
	for i := range v.node().GPUs {
		pci := v.node().GPUs[i].PCI
		before, err := v.handle(pci)
		if err != nil {
			continue // released, or there was none
		}
		file := opened[pci]
		delete(opened, pci)
		handles[pci] = before
		byDog[before.dog] = append(byDog[before.dog], func() {
			c.reopenGPU(ctx, pci, before.dog)
			_ = file.Close() // which does nothing with one that is nil
		})
	}
	v.replaceHandles(handles)
	for dog, all := range byDog {
		kept = append(kept, dog, dog.use)
		go func() {
			defer dog.endAll(ctx)
			for _, reopen := range all {
				reopen()
			}
		}()
	}
	return kept
}

// reopenGPU takes a new handle of a GPU; without one it has none until the next scan.
func (c *calls) reopenGPU(ctx context.Context, pci gpu.PCIAddress, dog *watchdog) {
	v := c.inventory
	dev, err := c.lib.DeviceByPCI(pci)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A GPU cannot be opened again", "pci", pci)
	} else {
		defer c.outdateEvents() // those that were subscribed to while it was being opened
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	next := *v.last
	next.handles = maps.Clone(v.last.handles)
	delete(next.handles, pci)
	if err == nil {
		next.handles[pci] = handle{Device: dev, dog: dog, epoch: int(c.epoch.Load())}
	}
	v.last = &next
}

// outdateEvents ends subscriptions that lack a GPU.
func (c *calls) outdateEvents() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := range c.events {
		e.outdated.Store(true)
	}
}

func (v *inventory) isReleased(pci gpu.PCIAddress) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.released[pci]
}

func (v *inventory) setReleased(pci gpu.PCIAddress, released bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.released[pci] = released
}

// replaceHandles replaces the handles of all GPUs.
func (v *inventory) replaceHandles(handles map[gpu.PCIAddress]handle) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := *v.last
	next.handles = handles
	v.last = &next
}

// retake replaces a GPU after a reread.
func (v *inventory) retake(g gpu.GPU, h handle) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := *v.last
	next.node.GPUs = slices.Clone(v.last.node.GPUs)
	for i := range next.node.GPUs {
		if next.node.GPUs[i].PCI == g.PCI {
			next.node.GPUs[i] = g
		}
	}
	next.handles = maps.Clone(v.last.handles)
	next.handles[g.PCI] = h
	v.last = &next
}
