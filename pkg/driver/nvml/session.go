// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/info"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// Options locate the driver.
type Options struct {
	// DriverRoot is the directory at which this process sees the driver's files: "/" or a mounted driver container.
	DriverRoot string
	// OtherRoots are searched in this order if DriverRoot has no driver.
	OtherRoots []string
	// Probe chooses between the libraries of several roots; nil takes the first.
	Probe Probe
	// LibraryPath is the management library itself; empty searches the roots.
	LibraryPath string
	// Sysfs is the node's /sys.
	Sysfs fs.ReadLinkFS
	// Procfs is the node's /proc; nil if unknown.
	Procfs fs.FS
}

// Session is a long-lived NVML session. It caches handles, because nvmlInit and lookups by UUID can take seconds under
// load. All methods but Rediscover are safe for concurrent use.
type Session struct {
	calls     *calls
	inventory *inventory
	profiles  computeProfiles
	root      string
	manager   fabricManager
	// stale is set if a GPU no longer matches the inventory.
	stale atomic.Bool
	scan  scan
	// rereading is held while the inventory is rebuilt.
	rereading sync.Mutex
}

// Open finds the library, starts a session and reads the hardware once. Errors name the path of the library.
func Open(ctx context.Context, opts Options) (*Session, error) {
	chosen, err := locate(ctx, opts)
	if err != nil {
		return nil, err
	}
	s, err := openSession(ctx, newRealLibrary(chosen.path), opts.Sysfs, watchdogsOf(chosen.path))
	noteLoaded(chosen.path, err)
	if err != nil {
		return nil, fmt.Errorf("open NVML session with %s: %w", chosen.path, err)
	}
	s.root, s.manager.procfs = chosen.root, opts.Procfs
	return s, nil
}

// locate finds the running driver's library, provided that this process can load it.
func locate(ctx context.Context, opts Options) (candidate, error) {
	found, err := find(opts)
	if err != nil {
		return candidate{}, err
	}
	chosen, err := choose(ctx, found, opts.Probe)
	if err != nil {
		return candidate{}, err
	}
	return chosen, mayLoad(chosen.path)
}

// OpenLibrary starts a session with a given library and reads the hardware once.
func OpenLibrary(ctx context.Context, lib Library, sysfs fs.ReadLinkFS) (*Session, error) {
	return openSession(ctx, lib, sysfs, newWatchdogs())
}

func openSession(ctx context.Context, lib Library, sysfs fs.ReadLinkFS, dogs *watchdogs) (*Session, error) {
	s := newSession(lib, sysfs, dogs)
	if err := s.calls.library(ctx, "nvmlInit_v2", lib.Init); err != nil {
		return nil, err
	}
	if err := s.Refresh(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func newSession(lib Library, sysfs fs.ReadLinkFS, dogs *watchdogs) *Session {
	inventory := newInventory(sysfs)
	return &Session{
		calls:     &calls{lib: lib, inventory: inventory, dogs: dogs, events: map[*Events]bool{}},
		inventory: inventory, profiles: computeProfiles{ids: map[int]int{}},
	}
}

// FindLibrary returns the path of the first management library that matches opts.
func FindLibrary(opts Options) (string, error) {
	found, err := find(opts)
	if err != nil {
		return "", err
	}
	return found[0].path, nil
}

// FindRoot returns the root of the running driver.
func FindRoot(ctx context.Context, opts Options) (string, error) {
	found, err := find(opts)
	if err != nil {
		return "", err
	}
	chosen, err := choose(ctx, found, opts.Probe)
	return chosen.root, err
}

// find lists the libraries with their driver roots, in the order of the roots. Without an error there is at least one.
func find(opts Options) ([]candidate, error) {
	roots := append([]string{cmp.Or(opts.DriverRoot, "/")}, opts.OtherRoots...)
	var found []candidate
	for _, r := range roots {
		if path, ok := (driverroot.Root{Here: r}).NVML(); ok {
			found = append(found, candidate{path, r})
		}
	}
	if opts.LibraryPath != "" {
		if _, err := os.Stat(opts.LibraryPath); err != nil {
			return nil, fmt.Errorf("%w: the NVML library given with --nvml-library: %w", gpu.ErrLibraryNotFound, err)
		}
		root := roots[0]
		if len(found) > 0 {
			root = found[0].root
		}
		return []candidate{{opts.LibraryPath, root}}, nil
	}
	if len(found) == 0 && slices.ContainsFunc(roots, isJetson) {
		return nil, fmt.Errorf("%w: %s not found: %w", gpu.ErrLibraryNotFound, driverroot.LibraryName, errJetson)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: %s not found under %s: is the NVIDIA driver installed there? "+
			"Set --driver-root to the driver's root or --nvml-library to the file",
			gpu.ErrLibraryNotFound, driverroot.LibraryName, strings.Join(roots, " or "))
	}
	return found, nil
}

// isJetson reports whether a root belongs to a Jetson's Linux, some of whose releases lack NVML.
func isJetson(root string) bool {
	tegra, _ := info.New(info.WithRoot(root)).HasTegraFiles()
	return tegra
}

// Wait opens a session as soon as the driver is available. It returns early only when ctx ends, or if the driver needs
// another library than this process has loaded (ErrOtherLibrary). Each new reason for waiting is logged and passed to
// notify, which may be nil.
func Wait(ctx context.Context, opts Options, interval time.Duration, notify func(error)) (*Session, error) {
	logger := klog.FromContext(ctx)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := ""
	for {
		s, err := Open(ctx, opts)
		if err == nil || errors.Is(err, ErrOtherLibrary) {
			return s, err
		}
		if err.Error() != last {
			last = err.Error()
			logger.Info("Waiting for the NVIDIA driver", "reason", last, "retryEvery", interval)
			if notify != nil {
				notify(err)
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the NVIDIA driver: %w (last attempt: %w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Refresh rereads the hardware.
func (s *Session) Refresh(ctx context.Context) error {
	d, err := s.calls.discover(ctx)
	if err != nil {
		return err
	}
	s.inventory.adopt(d)
	return nil
}

// Node is the inventory of the last read. It is shared: do not modify it.
func (s *Session) Node() *gpu.Node {
	return s.inventory.node()
}

// Absent reports whether a GPU has certainly been removed from its address: its PCI function is gone, and with it the
// GPU's partitions. NVML cannot tell a removed GPU from an unreadable one. If sysfs never listed the GPU and lists no
// other NVIDIA GPU, as in virtual machines that hide PCI, its absence there proves nothing.
func (s *Session) Absent(pci gpu.PCIAddress) bool { return s.inventory.absent(pci) }

// DriverRoot is the root under which the driver was found, as this process sees it.
func (s *Session) DriverRoot() string { return s.root }

// VerifyGPU queries a GPU and fails if it is lost, was replaced (gpu.ErrReplaced), or has another device node than
// published (gpu.ErrMinorChanged).
//
// The library may return a cached UUID. It does not cache the temperature: the resource manager refuses every control call
// for a GPU that is no longer attached (NV_ERR_GPU_IS_LOST; open-gpu-kernel-modules 595.45.04,
// src/nvidia/src/kernel/rmapi/control.c), and this call is the cheapest that all boards support.
func (s *Session) VerifyGPU(ctx context.Context, g *gpu.GPU) error {
	_, err := ask(ctx, s.calls, g.PCI, "nvmlDeviceGetUUID", errorOnly(func(dev Device) error {
		uuid, err := dev.UUID()
		if err != nil {
			return fmt.Errorf("read the UUID of the GPU at %s: %w", g.PCI, err)
		}
		if uuid != g.UUID {
			return fmt.Errorf("%w: the GPU at %s is now %s, not %s as published", gpu.ErrReplaced, g.PCI, uuid, g.UUID)
		}
		if err := dev.Temperature(); err != nil && !lacking(err) {
			return fmt.Errorf("read the temperature of the GPU at %s: %w", g.PCI, err)
		}
		return checkMinor(dev, g)
	}))
	if errors.Is(err, gpu.ErrReplaced) || errors.Is(err, gpu.ErrMinorChanged) {
		s.stale.Store(true)
	}
	return err
}

// checkMinor fails if a GPU's minor number differs from the published one. A MIG mode change may change it (nvml.h,
// nvmlDeviceSetMigMode).
func checkMinor(dev Device, g *gpu.GPU) error {
	minor, err := dev.MinorNumber()
	if err != nil {
		return fmt.Errorf("read the minor number of the GPU at %s: %w", g.PCI, err)
	}
	if minor != g.Minor {
		return fmt.Errorf("%w: the device node of the GPU at %s is now /dev/nvidia%d, not /dev/nvidia%d; the inventory will be reread",
			gpu.ErrMinorChanged, g.PCI, minor, g.Minor)
	}
	return nil
}

// Processes lists the IDs of the processes that use the GPU at an address, in ascending order.
func (s *Session) Processes(ctx context.Context, pci gpu.PCIAddress) ([]int, error) {
	pids, err := ask(ctx, s.calls, pci, "nvmlDeviceGetComputeRunningProcesses", Device.RunningProcesses)
	if err != nil {
		return nil, fmt.Errorf("list the processes on the GPU at %s: %w", pci, err)
	}
	return pids, nil
}

// Close ends the session. It waits a moment for running calls, whose callers may have left, and fails while one is running, because
// nvmlShutdown would free memory in use.
func (s *Session) Close() error {
	if idle, err := s.calls.dogs.acquireAll(context.Background(), releaseWait, releaseWait); err == nil {
		idle()
	}
	if what := s.calls.dogs.busy(); what != "" {
		return fmt.Errorf("close the NVML session: %w: %s has not returned", gpu.ErrHangs, what)
	}
	return s.calls.dogs.shutdown(s.calls.lib, changeTimeout)
}
