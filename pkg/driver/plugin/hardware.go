// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// hardware is an NVML session with the offer that the control loop decides.
type hardware struct {
	*nvml.Session
	node atomic.Pointer[policy.Node]
	// look triggers an immediate search for GPUs.
	look chan<- struct{}
	// changed is called after a GPU was reset into another MIG mode and opened again; may be nil.
	changed func(pci gpu.PCIAddress)
	closed  *closedGPU
	ended   bool
}

// Node returns the inventory with the offer of its GPUs; nil before that is decided.
func (h *hardware) Node() *policy.Node { return h.node.Load() }

// end ends the NVML session, and fails while a call runs; it can be repeated.
func (h *hardware) end(ctx context.Context) error {
	if h.ended {
		return nil
	}
	err := h.Close()
	if errors.Is(err, gpu.ErrHangs) {
		return err
	}
	if err != nil { // as without a driver
		klog.FromContext(ctx).Error(err, "Ending the NVML session failed")
	}
	h.ended = true
	return nil
}

// VerifyGPU triggers an immediate search for GPUs if the inventory turns out to be wrong.
func (h *hardware) VerifyGPU(ctx context.Context, g *gpu.GPU) error {
	err := h.Session.VerifyGPU(ctx, g)
	if h.look != nil && (errors.Is(err, gpu.ErrReplaced) || errors.Is(err, gpu.ErrMinorChanged)) {
		signal(h.look)
	}
	return err
}

// SetMIG triggers reading the inventory again if the mode turns out to need a reset.
func (h *hardware) SetMIG(ctx context.Context, pci gpu.PCIAddress, enable bool) error {
	err := h.Session.SetMIG(ctx, pci, enable)
	if h.look != nil && errors.Is(err, gpu.ErrResetRequired) {
		signal(h.look)
	}
	return err
}

// Release closes a GPU, and prevents searches of the driver's files from opening it.
func (h *hardware) Release(ctx context.Context, pci gpu.PCIAddress) error {
	if err := h.closed.close(ctx); err != nil {
		return err
	}
	err := h.Session.Release(ctx, pci)
	if err != nil {
		h.closed.open()
	}
	return err
}

// Retake opens a GPU again. Its earlier conditions are over only if it was certainly reset, which a changed mode proves.
func (h *hardware) Retake(ctx context.Context, pci gpu.PCIAddress) error {
	defer h.closed.open()
	before := h.Session.Node().Find(pci.DeviceName())
	err := h.Session.Retake(ctx, pci)
	after := h.Session.Node().Find(pci.DeviceName())
	if err == nil && h.changed != nil && before != nil && after != nil && !after.MIG.SameMode(before.MIG) {
		h.changed(pci)
	}
	return err
}

// controlled adapts the hardware to the control loop.
type controlled struct {
	*service
	hw *hardware
}

func (c controlled) Inventory() *gpu.Node { return c.hw.Session.Node() }
func (c controlled) Missing() error       { return c.driver.missing() }
func (c controlled) RereadLinks()         { signal(c.finder.links) }

// Close waits for searches of the driver's files, which open GPUs and may outlive the calls that began them.
func (c controlled) Close(ctx context.Context) error {
	defer c.driver.released()
	return errors.Join(c.hw.closed.close(ctx), c.hw.end(ctx))
}

// Offer lets claims be prepared by an offer, and describes the GPUs on the Node object.
func (c controlled) Offer(offered *policy.Node) {
	c.hw.node.Store(offered)
	c.describe(offered)
}

// SyncInventory notes the driver session of added GPUs and rewrites the CDI spec.
func (c controlled) SyncInventory(ctx context.Context, inventory *gpu.Node) {
	if err := c.sessions.Begin(deviceNames(inventory)); err != nil {
		// Without it the plugin does not own the recorded partitions, and leaves them alone.
		klog.FromContext(ctx).Error(err, "Could not save the driver session of changed GPUs")
	}
	if err := c.specs.Refresh(ctx, inventory); err != nil { // retried by specs.keep
		klog.FromContext(ctx).Error(err, "Could not write the CDI spec of changed GPUs")
	}
}

// deviceNames returns the whole-GPU devices of a node.
func deviceNames(inventory *gpu.Node) []string {
	names := make([]string, 0, len(inventory.GPUs))
	for i := range inventory.GPUs {
		names = append(names, inventory.GPUs[i].PCI.DeviceName())
	}
	return names
}

// MemoryLimits determines on which GPUs the driver can limit the memory of a container, and installs the hook that requests the
// limits if there is any such GPU. In MIG mode it is others that do not answer.
func (c controlled) MemoryLimits(ctx context.Context, node *gpu.Node) (map[gpu.PCIAddress]bool, error) {
	cgroup2 := isCgroup2(c.config.CgroupRoot)
	if !cgroup2 {
		klog.FromContext(ctx).Info("Memory of time slices is not limited: no cgroup v2 hierarchy", "root", c.config.CgroupRoot)
	}
	limits, needed, failed := map[gpu.PCIAddress]bool{}, false, error(nil)
	for i := range node.GPUs {
		g, limited, err := &node.GPUs[i], false, error(nil)
		if cgroup2 {
			limited, err = c.hw.LimitsMemory(ctx, g.PCI, c.config.CgroupRoot)
		}
		failed = errors.Join(failed, err)
		if err == nil || g.MIG.Enabled {
			limits[g.PCI], needed = limited, needed || limited
		}
	}
	if needed {
		if _, err := hook.Install(c.config.pluginDir(), hook.MemoryLimit); err != nil {
			for pci := range limits {
				limits[pci] = false
			}
			failed = errors.Join(failed, err)
		}
	}
	return limits, failed
}

// isCgroup2 reports whether a directory is the root of a cgroup v2 hierarchy. Only those have the file.
func isCgroup2(root string) bool {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return err == nil
}
