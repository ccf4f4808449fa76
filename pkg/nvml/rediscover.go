// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// What is missing is looked for again after these times: the first and the longest.
const (
	firstLookAgain = 10 * time.Second
	lastLookAgain  = 5 * time.Minute
)

// look is what is remembered between looks for GPUs. One goroutine at a time looks.
type look struct {
	// known says of names of PCI functions whether they are NVIDIA GPUs.
	known map[string]bool
	// missing are the GPUs that sysfs has and the inventory lacks, as they were last; next is when to try again.
	missing []gpu.PCIAddress
	next    time.Time
	again   time.Duration
	// gone are GPUs that sysfs lacked at the last look.
	gone map[gpu.PCIAddress]bool
}

// Rediscover looks for GPUs that were added, replaced or taken out, or that could not be read, and reports whether the
// inventory has changed. A GPU that claims hold anything of stays in it, whatever became of it: the scheduler forgets what a
// device consumes that is no longer published. As long as sysfs shows the GPUs that are known, it costs one listing.
//
// NVML enumerates GPUs when it is initialised: "all device handles are no longer guaranteed to be valid" after others were
// discovered (nvml.h, nvmlDeviceDiscoverGpus). So a GPU that it does not list has the session started anew.
func (s *Session) Rediscover(ctx context.Context, held func(pci gpu.PCIAddress) bool) (changed bool, err error) {
	missing, gone := s.compare(held)
	stale := s.stale.Swap(false)
	if !slices.Equal(missing, s.look.missing) {
		s.look.missing, s.look.next, s.look.again = missing, time.Time{}, 0
	}
	wanted := len(missing) > 0 || len(s.Node().Problems) > 0
	due := wanted && !time.Now().Before(s.look.next)
	if !due && !stale && !gone {
		return false, nil
	}
	if due {
		s.look.again = min(max(firstLookAgain, 2*s.look.again), lastLookAgain)
		s.look.next = time.Now().Add(s.look.again)
	}
	changed, err = s.reread(ctx, held)
	ended := errors.Is(err, gpu.ErrDriverNotLoaded) // as when an earlier attempt could not initialise it again
	if err != nil && !ended || !due {
		return changed, err
	}
	if missing, _ = s.compare(held); len(missing) == 0 && !ended {
		return changed, nil
	}
	klog.FromContext(ctx).Info("Starting the NVML session anew: sysfs has GPUs that it does not list", "gpus", missing)
	if err := s.reopen(ctx); err != nil {
		return changed, fmt.Errorf("look for the GPUs at %v: %w", missing, err)
	}
	again, err := s.reread(ctx, held)
	return changed || again, err
}

// compare holds the inventory against sysfs: GPUs that the inventory lacks, and whether some are to leave it.
func (s *Session) compare(held func(pci gpu.PCIAddress) bool) (missing []gpu.PCIAddress, gone bool) {
	if s.look.known == nil {
		s.look.known, s.look.gone = map[string]bool{}, map[gpu.PCIAddress]bool{}
	}
	functions, err := pciGPUs(s.sysfs, s.look.known)
	if err != nil {
		return nil, false // no sysfs, nothing to hold against it
	}
	node := s.Node()
	for _, f := range functions {
		// One that is bound to another driver, such as vfio-pci, is nobody's here.
		if node.Find(f.pci.DeviceName()) == nil && (f.driver == "" || f.driver == "nvidia") {
			missing = append(missing, f.pci)
		}
	}
	before := s.look.gone
	s.look.gone = map[gpu.PCIAddress]bool{}
	for i := range node.GPUs {
		pci := node.GPUs[i].PCI
		if s.wasListed(pci) && s.Presence(pci) == Absent {
			s.look.gone[pci] = true
			// A claim may have been allocated it and not have been prepared yet: it leaves at the second look.
			gone = gone || before[pci] && !held(pci)
		}
	}
	return missing, gone
}

// reread reads all GPUs and merges them into the inventory.
func (s *Session) reread(ctx context.Context, held func(pci gpu.PCIAddress) bool) (changed bool, err error) {
	d, err := s.discover(ctx)
	if err != nil {
		return false, err
	}
	before := s.last
	next := s.merge(before, d, held)
	changed = !slices.EqualFunc(before.node.GPUs, next.node.GPUs, func(a, b gpu.GPU) bool {
		return a.PCI == b.PCI && a.UUID == b.UUID && a.Minor == b.Minor
	}) || !slices.EqualFunc(before.node.Problems, next.node.Problems, func(a, b gpu.Problem) bool { return a.Err.Error() == b.Err.Error() })
	s.adopt(next)
	return changed, nil
}

// merge makes the next inventory of the one before and what was read now. A GPU that was known before keeps what was read
// of it then, but for what may change while it is there.
func (s *Session) merge(before, now *discovery, held func(pci gpu.PCIAddress) bool) *discovery {
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
			g = kept
		case held(g.PCI):
			h := now.handles[g.PCI]
			h.replaced = fmt.Errorf("%w: the GPU at %s is now %s, not %s as published", gpu.ErrReplaced, g.PCI, g.UUID, was.UUID)
			next.handles[g.PCI] = h
			g = *was
		}
		next.node.GPUs = append(next.node.GPUs, g)
	}
	for i := range before.node.GPUs {
		g := &before.node.GPUs[i]
		if now.node.Find(g.PCI.DeviceName()) != nil || s.look.gone[g.PCI] && !held(g.PCI) {
			continue
		}
		next.node.GPUs = append(next.node.GPUs, *g) // it cannot be read, which is not to be gone
		if h, ok := before.handles[g.PCI]; ok && h.epoch == int(s.epoch.Load()) {
			next.handles[g.PCI] = h
		}
	}
	gpu.SortGPUs(next.node.GPUs)
	return next
}

// reopen ends the NVML session and starts it anew. What waits for a GPU meanwhile is told to try again. It is refused while
// a call has not returned, as that would use what nvmlShutdown frees.
func (s *Session) reopen(ctx context.Context) error {
	release, err := s.dogs.holdAll(ctx, s.patience.Change)
	if err != nil {
		return fmt.Errorf("start the NVML session anew: %w", err)
	}
	defer release()
	unhold, err := s.holdNodes()
	if err != nil {
		return fmt.Errorf("start the NVML session anew: %w", err)
	}
	defer unhold()
	s.mu.Lock()
	s.epoch.Add(1)
	open := slices.Collect(maps.Keys(s.events))
	clear(s.events)
	s.mu.Unlock()
	_, err = bounded(ctx, newWatchdog(), "nvmlInit_v2", s.patience.Change, true, func() (struct{}, error) {
		for _, e := range open {
			if err := e.set.Free(); err != nil {
				klog.FromContext(ctx).V(2).Info("Could not end a watch of events", "reason", err.Error())
			}
		}
		if err := s.lib.Shutdown(); err != nil && !errors.Is(err, gpu.ErrDriverNotLoaded) {
			return struct{}{}, err
		}
		return struct{}{}, s.lib.Init()
	})
	if err != nil {
		return fmt.Errorf("start the NVML session anew: %w", err)
	}
	return nil
}

// holdNodes opens the device nodes of all GPUs that the session reaches. The driver tears a GPU's state down, its
// partitions included, when the last file of it is closed and persistence mode is off (open-gpu-kernel-modules 595.45.04,
// kernel-open/nvidia/nv.c, nv_close_device).
func (s *Session) holdNodes() (unhold func(), err error) {
	var files []*os.File
	unhold = func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	if s.root == "" {
		return unhold, nil // a library without a driver's root has no nodes
	}
	node := s.Node()
	for i := range node.GPUs {
		g := &node.GPUs[i]
		f, err := openNode(s.root, g.Minor)
		switch {
		case err == nil:
			files = append(files, f)
		case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.EIO), s.Presence(g.PCI) == Absent:
			// no kernel driver or no GPU behind the node: there is nothing to keep
		default:
			unhold()
			return nil, fmt.Errorf("keep the GPU at %s open: %w", g.PCI, err)
		}
	}
	return unhold, nil
}

// openNode opens a GPU's device node, in the driver's root or, where that has no /dev, on the host.
func openNode(root string, minor int) (*os.File, error) {
	name := fmt.Sprintf("dev/nvidia%d", minor)
	f, err := os.OpenFile(filepath.Join(root, name), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) && filepath.Clean(root) != "/" {
		return os.OpenFile(filepath.Join("/", name), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	}
	return f, err
}

// holdAll keeps everything from running until the function that it returns is called. It fails if something has not
// returned within limit.
func (w *watchdogs) holdAll(ctx context.Context, limit time.Duration) (release func(), err error) {
	w.mu.Lock()
	all := w.all()
	w.mu.Unlock()
	var held []*watchdog
	release = func() {
		for _, dog := range slices.Backward(held) {
			dog.end(ctx)
		}
	}
	for _, dog := range all {
		if err := dog.begin(ctx, "starting the NVML session anew", cmp.Or(limit, time.Second)); err != nil {
			release()
			return nil, err
		}
		held = append(held, dog)
	}
	return release, nil
}
