// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"sync"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// discovery is the result of one read of the node's hardware, with the handles to its GPUs.
type discovery struct {
	node    gpu.Node
	handles map[gpu.PCIAddress]handle
}

// handle gives access to a GPU in one epoch of a session.
type handle struct {
	Device
	dog *watchdog
	// epoch of the session that the handle belongs to: NVML handles do not outlive nvmlShutdown.
	epoch int
	// replaced is the error for a GPU of the inventory whose address another GPU now has.
	replaced error
}

// inventory is the data read from the node's GPUs so far.
type inventory struct {
	sysfs fs.ReadLinkFS

	mu   sync.RWMutex
	last *discovery
	// listed are the GPUs whose PCI function sysfs listed in any read.
	listed map[gpu.PCIAddress]bool
	// released are closed GPUs that must not be opened, see Session.Release.
	released map[gpu.PCIAddress]bool
	// resetRequired are the UUIDs of GPUs whose MIG mode needs a reset according to the driver, though their chip needs none.
	resetRequired map[string]bool
}

func newInventory(sysfs fs.ReadLinkFS) *inventory {
	return &inventory{
		sysfs: sysfs, listed: map[gpu.PCIAddress]bool{}, released: map[gpu.PCIAddress]bool{},
		resetRequired: map[string]bool{},
	}
}

// noteResetRequired records, in a guest, that the MIG mode of the GPU at an address needs a reset. It holds for the session, as a
// rebooted guest starts another. On bare metal the generation of the board determines whether a reset is needed.
func (v *inventory) noteResetRequired(pci gpu.PCIAddress) (noted bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.last.node.Find(pci.DeviceName())
	if g == nil || g.Virtualization != gpu.PassThrough {
		return false
	}
	v.resetRequired[g.UUID] = true
	return true
}

func (v *inventory) requiresReset(g *gpu.GPU) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.resetRequired[g.UUID]
}

// node is that of the last read. It is shared: do not modify it.
func (v *inventory) node() *gpu.Node {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return &v.last.node
}

// handle returns the handle of the GPU at an address.
func (v *inventory) handle(pci gpu.PCIAddress) (handle, error) {
	v.mu.RLock()
	h, ok := v.last.handles[pci]
	released := v.released[pci]
	v.mu.RUnlock()
	if released {
		return handle{}, fmt.Errorf("use the GPU at %s: %w", pci, gpu.ErrReleased)
	}
	if ok {
		return h, h.replaced
	}
	if v.absent(pci) {
		return handle{}, fmt.Errorf("find GPU at %s: %w: %w", pci, gpu.ErrNotFound, gpu.ErrAbsent)
	}
	return handle{}, fmt.Errorf("find GPU at %s: %w: %w", pci, gpu.ErrNotFound, gpu.ErrUnreadable)
}

// isOpen reports whether a GPU has a handle, and is not released.
func (v *inventory) isOpen(pci gpu.PCIAddress) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	_, ok := v.last.handles[pci]
	return ok && !v.released[pci]
}

// adopt replaces the inventory.
func (v *inventory) adopt(d *discovery) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = d
	for i := range d.node.GPUs {
		g := &d.node.GPUs[i]
		v.listed[g.PCI] = v.listed[g.PCI] || len(g.PCIePath) > 0
	}
}

// updateLinks updates the NVLinks from freshly read GPUs.
func (v *inventory) updateLinks(fresh []gpu.GPU) (changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := *v.last
	next.node.GPUs = slices.Clone(v.last.node.GPUs)
	for i := range next.node.GPUs {
		g := &next.node.GPUs[i]
		at := slices.IndexFunc(fresh, func(f gpu.GPU) bool { return f.PCI == g.PCI && f.UUID == g.UUID })
		if at < 0 {
			continue
		}
		f := &fresh[at]
		if reflect.DeepEqual(f.NVLinks, g.NVLinks) && reflect.DeepEqual(f.Fabric, g.Fabric) && f.FabricState == g.FabricState {
			continue
		}
		changed = true
		g.NVLinks, g.Fabric, g.FabricState = f.NVLinks, f.Fabric, f.FabricState
	}
	if changed {
		v.last = &next
	}
	return changed
}

// absent is Session.Absent.
func (v *inventory) absent(pci gpu.PCIAddress) bool {
	if _, err := fs.Stat(v.sysfs, deviceLink(pci)); err == nil {
		return false
	}
	functions, err := pciGPUs(v.sysfs, nil)
	return err == nil && (len(functions) > 0 || v.wasListed(pci))
}

// wasListed reports whether an earlier read found the PCI function of a GPU in sysfs.
func (v *inventory) wasListed(pci gpu.PCIAddress) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.listed[pci]
}
