// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Backoff between attempts to find missing GPUs.
const (
	minScanBackoff = 10 * time.Second
	maxScanBackoff = 5 * time.Minute
)

// scan is the state that Rediscover keeps between calls. Only one goroutine at a time may call it.
type scan struct {
	// known caches which names of PCI functions are NVIDIA GPUs.
	known map[string]bool
	// missing are the GPUs that sysfs lists and the inventory lacked at the last scan; next is the time of the next attempt.
	missing []gpu.PCIAddress
	next    time.Time
	backoff time.Duration
	// ended is set while NVML is not initialised, as a restart has failed.
	ended bool
	// gone are the GPUs that sysfs lacked at the last scan.
	gone map[gpu.PCIAddress]bool
}

// Rediscover looks for GPUs that were added, replaced, removed or unreadable, and reports whether the inventory changed. An
// allocated GPU stays in the inventory even after its removal: the scheduler forgets the counters of a device that is no
// longer published. While sysfs lists exactly the known GPUs, Rediscover costs one directory listing.
//
// NVML enumerates GPUs at initialisation: "all device handles are no longer guaranteed to be valid" after others were
// discovered (nvml.h, nvmlDeviceDiscoverGpus). Rediscover therefore restarts the session if NVML does not list a GPU.
func (s *Session) Rediscover(ctx context.Context, allocated func(pci gpu.PCIAddress) bool) (changed bool, err error) {
	s.rereading.Lock()
	defer s.rereading.Unlock()
	if slices.ContainsFunc(s.Node().GPUs, func(g gpu.GPU) bool { return s.inventory.isReleased(g.PCI) }) {
		return false, nil // a read goes by indexes, and would open the GPU
	}
	missing, gone := s.scan.compare(s.inventory, allocated)
	stale := s.stale.Swap(false)
	if !slices.Equal(missing, s.scan.missing) {
		s.scan.missing, s.scan.next, s.scan.backoff = missing, time.Time{}, 0
	}
	wanted := len(missing) > 0 || len(s.Node().Problems) > 0 || s.scan.ended
	due := wanted && !time.Now().Before(s.scan.next)
	if !due && !stale && !gone {
		return false, nil
	}
	changed, err = reread(ctx, s, allocated)
	ended := errors.Is(err, gpu.ErrDriverNotLoaded)
	due = due || ended && !s.scan.ended
	s.scan.ended = ended
	if due {
		s.scan.backoff = min(max(minScanBackoff, 2*s.scan.backoff), maxScanBackoff)
		s.scan.next = time.Now().Add(s.scan.backoff)
	}
	if err != nil && !ended {
		s.stale.Store(true) // the next scan tries again
		return changed, err
	}
	if !due {
		return changed, err
	}
	if missing, _ = s.scan.compare(s.inventory, allocated); len(missing) == 0 && !ended {
		return changed, nil
	}
	klog.FromContext(ctx).Info("Restarting the NVML session: sysfs lists GPUs that NVML does not", "gpus", missing)
	if err := s.calls.restart(ctx, s.root, changeTimeout, nil); err != nil {
		return changed, fmt.Errorf("find the GPUs at %v: %w", missing, err)
	}
	s.scan.ended = false
	again, err := reread(ctx, s, allocated)
	if err != nil {
		s.stale.Store(true)
	}
	return changed || again, err
}

// Missing returns the GPUs that sysfs listed at the last Rediscover and that the inventory lacks: the driver does not list them, or they
// cannot be read. A host of vGPUs has none, as sysfs lists those, too.
func (s *Session) Missing() []gpu.PCIAddress {
	s.rereading.Lock()
	defer s.rereading.Unlock()
	node := s.Node()
	if slices.ContainsFunc(node.Problems, func(p gpu.Problem) bool { return errors.Is(p.Err, gpu.ErrNotSupported) }) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.scan.missing), func(pci gpu.PCIAddress) bool { return node.Find(pci.DeviceName()) != nil })
}

// compare compares an inventory with sysfs: which GPUs the inventory lacks, and whether it should drop any.
func (c *scan) compare(known *inventory, allocated func(pci gpu.PCIAddress) bool) (missing []gpu.PCIAddress, gone bool) {
	if c.known == nil {
		c.known, c.gone = map[string]bool{}, map[gpu.PCIAddress]bool{}
	}
	functions, err := pciGPUs(known.sysfs, c.known)
	if err != nil {
		return nil, false // without sysfs there is nothing to compare with
	}
	node := known.node()
	for _, f := range functions {
		// GPUs that are bound to another driver, such as vfio-pci, are not served.
		if node.Find(f.pci.DeviceName()) == nil && (f.driver == "" || f.driver == "nvidia") {
			missing = append(missing, f.pci)
		}
	}
	before := c.gone
	c.gone = map[gpu.PCIAddress]bool{}
	for i := range node.GPUs {
		pci := node.GPUs[i].PCI
		if known.wasListed(pci) && known.absent(pci) {
			c.gone[pci] = true
			// The GPU may be allocated to a claim that is not prepared yet, so it is dropped at the second scan.
			gone = gone || before[pci] && !allocated(pci)
		}
	}
	return missing, gone
}

// reread reads all GPUs and merges them into the inventory.
func reread(ctx context.Context, s *Session, allocated func(pci gpu.PCIAddress) bool) (changed bool, err error) {
	d, err := s.calls.discover(ctx)
	if err != nil {
		return false, err
	}
	before := s.inventory.last
	next := s.scan.merge(before, d, int(s.calls.epoch.Load()), allocated)
	s.inventory.adopt(next)
	for pci := range next.handles {
		if _, had := before.handles[pci]; !had {
			s.calls.outdateEvents()
		}
	}
	return !before.node.SameGPUs(&next.node), nil
}

// merge returns the next inventory. A known GPU keeps its first attributes, except those that may change during its lifetime.
func (c *scan) merge(before, now *discovery, epoch int, allocated func(pci gpu.PCIAddress) bool) *discovery {
	next := &discovery{node: now.node, handles: now.handles}
	next.node.GPUs = nil
	for i := range now.node.GPUs {
		g := now.node.GPUs[i]
		was := before.node.Find(g.PCI.DeviceName())
		switch {
		case was == nil:
		case was.UUID == g.UUID:
			kept := *was
			kept.Index, kept.Minor = g.Index, g.Minor
			if len(was.MIG.Profiles) == 0 { // older drivers list none out of MIG mode
				kept.MIG = g.MIG
			}
			kept.MIG.NeedsReset = g.MIG.NeedsReset
			if g.MIG.NeedsReset { // otherwise the mode follows allocations
				kept.MIG.Enabled, kept.MIG.Pending = g.MIG.Enabled, g.MIG.Pending
			}
			g = kept
		case allocated(g.PCI):
			h := now.handles[g.PCI]
			h.replaced = fmt.Errorf("%w: the GPU at %s is now %s, not %s as published", gpu.ErrReplaced, g.PCI, g.UUID, was.UUID)
			next.handles[g.PCI] = h
			g = *was
		}
		next.node.GPUs = append(next.node.GPUs, g)
	}
	for i := range before.node.GPUs {
		g := &before.node.GPUs[i]
		if now.node.Find(g.PCI.DeviceName()) != nil || c.gone[g.PCI] && !allocated(g.PCI) {
			continue
		}
		next.node.GPUs = append(next.node.GPUs, *g) // an unreadable GPU is still there
		if h, ok := before.handles[g.PCI]; ok && h.epoch == epoch {
			next.handles[g.PCI] = h
		}
	}
	gpu.SortGPUs(next.node.GPUs)
	return next
}

// restart shuts NVML down, initialises it again, and calls begun, unless that is nil, before any other call. Queued calls fail with
// errRestarted, or continue with the handles that begun takes: calls about a GPU whose watchdog it keeps wait until it releases that. It
// fails if a running call does not return within wait: nvmlShutdown would free memory in use. No call runs before the restart has
// ended, even if the caller no longer waits for that.
func (c *calls) restart(ctx context.Context, root string, wait time.Duration, begun func(nodes) (kept []*watchdog)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restart the NVML session: %w", err)
		}
	}()
	release, err := c.dogs.acquireAll(ctx, wait, wait+changeTimeout)
	if err != nil {
		return err
	}
	opened, kept, err := c.openNodes(ctx, root)
	if err != nil {
		release(kept...)
		return err
	}
	c.mu.Lock()
	c.epoch.Add(1)
	open := slices.Collect(maps.Keys(c.events))
	clear(c.events)
	ending := slices.Clone(c.ending)
	c.mu.Unlock()
	_, err = bounded(ctx, newWatchdog(), "nvmlInit_v2", changeTimeout, true, func() (struct{}, error) {
		defer func() { release(kept...) }()
		defer opened.close()
		for _, e := range open {
			if err := e.set.Free(); err != nil {
				klog.FromContext(ctx).V(2).Info("Could not free an event set", "reason", err.Error())
			}
		}
		for _, end := range ending {
			end()
		}
		if err := c.lib.Shutdown(); err != nil && !errors.Is(err, gpu.ErrDriverNotLoaded) {
			return struct{}{}, err
		}
		if err := c.lib.Init(); err != nil {
			return struct{}{}, err
		}
		if begun != nil {
			kept = begun(opened)
		}
		return struct{}{}, nil
	})
	return err
}

// acquireAll blocks all calls until release is called, which counts as hanging after limit. Those that release is to keep stay blocked.
// It fails if the running calls do not return within wait.
func (w *watchdogs) acquireAll(ctx context.Context, wait, limit time.Duration) (release func(keep ...*watchdog), err error) {
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(wait, time.Second))
	defer cancel()
	w.mu.Lock()
	all := w.all()
	w.mu.Unlock()
	var acquired []*watchdog
	release = func(keep ...*watchdog) {
		for _, dog := range slices.Backward(acquired) {
			if !slices.Contains(keep, dog) {
				dog.end(ctx)
			}
		}
	}
	for _, dog := range all {
		if err := dog.begin(waiting, "restarting the NVML session", cmp.Or(limit, time.Second)); err != nil {
			release()
			return nil, err
		}
		acquired = append(acquired, dog)
	}
	return release, nil
}
