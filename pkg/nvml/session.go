package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// LibraryName is the SONAME under which every NVIDIA driver installs its management library.
const LibraryName = "libnvidia-ml.so.1"

// Options say where the driver is.
type Options struct {
	// DriverRoot is the folder under which this process sees the driver's files: "/" or a mounted driver container.
	DriverRoot string
	// OtherRoots are looked in, in this order, where DriverRoot has no driver.
	OtherRoots []string
	// LibraryPath is the management library itself; empty to look for it under the roots.
	LibraryPath string
	// Sysfs is the node's /sys.
	Sysfs fs.ReadLinkFS
}

// Session is one long-lived NVML session: nvmlInit and lookups by UUID can take seconds under load, so handles are
// kept. All methods are safe for concurrent use.
type Session struct {
	lib   Library
	sysfs fs.ReadLinkFS
	root  string

	mu      sync.RWMutex
	last    *discovery
	filling map[int]int // compute slices -> compute profile ID, see fillingProfile
}

// Open finds the library, starts a session and reads the hardware once. Errors name the path that was tried.
func Open(ctx context.Context, opts Options) (*Session, error) {
	path, root, err := find(opts)
	if err != nil {
		return nil, err
	}
	s, err := OpenLibrary(ctx, newRealLibrary(path), opts.Sysfs)
	if err != nil {
		return nil, fmt.Errorf("open NVML session with %s: %w", path, err)
	}
	s.root = root
	return s, nil
}

// OpenLibrary starts a session with a given library and reads the hardware once.
func OpenLibrary(ctx context.Context, lib Library, sysfs fs.ReadLinkFS) (*Session, error) {
	if err := lib.Init(); err != nil {
		return nil, err
	}
	s := &Session{lib: lib, sysfs: sysfs, filling: map[int]int{}}
	if err := s.Refresh(ctx); err != nil {
		return nil, errors.Join(err, lib.Shutdown())
	}
	return s, nil
}

// FindLibrary gives the path of the management library that opts lead to.
func FindLibrary(opts Options) (string, error) {
	path, _, err := find(opts)
	return path, err
}

// find gives the library and the driver root that goes with it: the first that has one.
func find(opts Options) (path, root string, err error) {
	roots := append([]string{cmp.Or(opts.DriverRoot, "/")}, opts.OtherRoots...)
	root = roots[0]
	for _, r := range roots {
		if found, ok := libraryIn(r); ok {
			path, root = found, r
			break
		}
	}
	if opts.LibraryPath != "" {
		if _, err := os.Stat(opts.LibraryPath); err != nil {
			return "", "", fmt.Errorf("%w: the NVML library given with --nvml-library: %w", gpu.ErrLibraryNotFound, err)
		}
		return opts.LibraryPath, root, nil
	}
	if path == "" {
		return "", "", fmt.Errorf("%w: %s not found under %s: is the NVIDIA driver installed there? "+
			"Set --driver-root to the driver's root or --nvml-library to the file", gpu.ErrLibraryNotFound, LibraryName, strings.Join(roots, " or "))
	}
	return path, root, nil
}

// libraryIn looks for the library under one root.
func libraryIn(root string) (string, bool) {
	found, err := lookup.NewLibraryLocator(lookup.WithRoot(root), lookup.WithLogger(silent{})).Locate(LibraryName)
	if err != nil || len(found) == 0 {
		return "", false
	}
	return filepath.Clean(found[0]), true
}

// Wait opens a session as soon as the driver answers, however long that takes; it gives up only when ctx ends.
// Each new reason for waiting goes to notify, which may be nil, and to the log.
func Wait(ctx context.Context, opts Options, interval time.Duration, notify func(error)) (*Session, error) {
	logger := klog.FromContext(ctx)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := ""
	for {
		s, err := Open(ctx, opts)
		if err == nil {
			return s, nil
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

// Refresh reads the hardware again.
func (s *Session) Refresh(ctx context.Context) error {
	d, err := discover(ctx, s.lib, s.sysfs)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = d
	return nil
}

// Node is what the last read found. The result is shared: do not change it.
func (s *Session) Node() *gpu.Node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return &s.last.node
}

// DriverRoot is which of the roots the driver was found under, as this process sees it.
func (s *Session) DriverRoot() string { return s.root }

// VerifyGPU asks the GPU at an address for its UUID now and fails if the GPU is lost or another one took its place
// (gpu.ErrReplaced).
func (s *Session) VerifyGPU(ctx context.Context, g *gpu.GPU) error {
	dev, err := s.device(g.PCI)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", "nvmlDeviceGetUUID", "pci", g.PCI)
	uuid, err := dev.UUID()
	if err != nil {
		return fmt.Errorf("read the UUID of the GPU at %s: %w", g.PCI, err)
	}
	if uuid != g.UUID {
		return fmt.Errorf("%w: the GPU at %s is now %s, not %s as published; restart the plugin to publish the new one",
			gpu.ErrReplaced, g.PCI, uuid, g.UUID)
	}
	return nil
}

// Processes lists the process ids that use the GPU at an address, in ascending order.
func (s *Session) Processes(ctx context.Context, pci gpu.PCIAddress) ([]int, error) {
	dev, err := s.device(pci)
	if err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", "nvmlDeviceGetComputeRunningProcesses", "pci", pci)
	pids, err := dev.RunningProcesses()
	if err != nil {
		return nil, fmt.Errorf("list the processes on the GPU at %s: %w", pci, err)
	}
	return pids, nil
}

// Close ends the session.
func (s *Session) Close() error {
	return s.lib.Shutdown()
}

// silent passes over what the search for the library says on its way, such as that a root has no ld.so.cache.
type silent struct{}

func (silent) Debugf(string, ...any)   {}
func (silent) Infof(string, ...any)    {}
func (silent) Warningf(string, ...any) {}
func (silent) Errorf(string, ...any)   {}
func (silent) Tracef(string, ...any)   {}
