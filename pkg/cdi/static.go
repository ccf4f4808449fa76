// Package cdi writes the container device specs that turn an allocated device into device nodes, libraries and hooks
// inside a container.
//
// One static spec per node holds what every container needs of the driver, and one device per GPU. A whole GPU needs
// no more, so preparing one writes no spec: runtimes parse every spec in the folder at each change.
package cdi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Class of the CDI kind "<driver name>/gpu".
const Class = "gpu"

// Options say where things are.
type Options struct {
	// Driver is the DRA driver's name and the vendor of the CDI kind, so that two drivers cannot clash.
	Driver string
	// Dir is where container runtimes look for specs, such as /var/run/cdi.
	Dir string
	// DriverRoot is the driver's root on the host, as a container runtime sees it.
	DriverRoot string
	// ContainerDriverRoot is the same folder as this process sees it.
	ContainerDriverRoot string
	// Procfs is the node's /proc.
	Procfs fs.FS
	// HookPath is the nvidia-cdi-hook program on the host, see package hook.
	HookPath string
	// MemoryHookPath is the cleave-memory-limit program on the host, which specs name only where the driver limits memory.
	MemoryHookPath string
}

// Static is the spec of a node.
type Static struct {
	opts Options
	// cache writes specs. It is made once: making one parses every spec in the folder.
	cache *cdi.Cache

	mu      sync.RWMutex
	spec    *specs.Spec
	nodes   map[string][]string // device name -> paths of its device nodes, as this process sees them
	minors  map[string]int      // device name -> N of /dev/nvidiaN
	missing map[string]error    // device name -> why it could not be made

	fileMu  sync.Mutex
	written os.FileInfo // the spec's file as it was when it last was as it should be
}

// NewStatic checks the options. Write makes the spec.
func NewStatic(opts Options) (*Static, error) {
	opts.DriverRoot, opts.ContainerDriverRoot = filepath.Clean(opts.DriverRoot), filepath.Clean(opts.ContainerDriverRoot)
	if opts.ContainerDriverRoot == "/" && opts.DriverRoot != "/" {
		return nil, fmt.Errorf("driver root %s on the host is seen as / by the plugin: mount it elsewhere and set --container-driver-root", opts.DriverRoot)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(opts.Dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("open the CDI folder %s: %w", opts.Dir, err)
	}
	return &Static{opts: opts, cache: cache}, nil
}

// Path is the file of the spec.
func (s *Static) Path() string {
	return filepath.Join(s.opts.Dir, s.fileName())
}

func (s *Static) fileName() string { return staticFile(s.opts.Driver) }

func staticFile(driver string) string { return cdi.GenerateSpecName(driver, Class) + ".json" }

// DeviceID is the fully qualified CDI name of a whole GPU.
func (s *Static) DeviceID(device string) string {
	return s.opts.Driver + "/" + Class + "=" + device
}

// Write finds the driver's files, makes the spec and puts it where runtimes look. A GPU whose device nodes cannot be
// found is left out and said so by Ensure; the others are served.
func (s *Static) Write(ctx context.Context, node *gpu.Node) error {
	if err := s.generate(ctx, node); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.save()
}

// generate makes the spec in memory.
func (s *Static) generate(ctx context.Context, node *gpu.Node) error {
	lib, err := nvcdi.New(
		nvcdi.WithLogger(logger{klog.FromContext(ctx)}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(s.opts.ContainerDriverRoot),
		nvcdi.WithDevRoot(s.opts.ContainerDriverRoot),
		nvcdi.WithVendor(s.opts.Driver),
		nvcdi.WithClass(Class),
		nvcdi.WithNVIDIACDIHookPath(s.opts.HookPath),
		// IPC: would mount the host's /tmp/nvidia-mps into every container, tenants' MPS servers included.
		// nvsandboxutils: loads one more driver library into this process for nothing we need.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableIPCDiscoverer, nvcdi.FeatureDisableNvsandboxUtils),
		// Limits come from the claim's share, never from what a container says in its environment.
		nvcdi.WithDisabledHooks("apply-cuda-memory-limits"),
	)
	if err != nil {
		return fmt.Errorf("prepare to look for driver files under %s: %w", s.opts.ContainerDriverRoot, err)
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return fmt.Errorf("find the driver's files under %s: %w", s.opts.ContainerDriverRoot, err)
	}
	spec := &specs.Spec{Kind: s.opts.Driver + "/" + Class, ContainerEdits: *common.ContainerEdits}
	nodes, minors, missing := map[string][]string{}, map[string]int{}, map[string]error{}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		name := g.PCI.DeviceName()
		device, err := deviceSpec(lib, g)
		if err != nil {
			klog.FromContext(ctx).Error(err, "A GPU cannot be given to containers", "gpu", name)
			missing[name] = err
			continue
		}
		for _, n := range device.ContainerEdits.DeviceNodes {
			nodes[name] = append(nodes[name], hostPath(n))
		}
		minors[name] = g.Minor
		spec.Devices = append(spec.Devices, *device)
	}
	if len(spec.Devices) == 0 && len(missing) > 0 {
		return fmt.Errorf("find the device nodes of any GPU: %w", firstOf(node, missing))
	}
	if err := s.finish(spec); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spec, s.nodes, s.minors, s.missing = spec, nodes, minors, missing
	return nil
}

// deviceSpec makes the CDI device of a whole GPU under our name for it.
func deviceSpec(lib nvcdi.Interface, g *gpu.GPU) (*specs.Device, error) {
	devices, err := lib.GetDeviceSpecsByID(g.UUID)
	if err != nil {
		return nil, fmt.Errorf("find the device nodes of GPU %s (/dev/nvidia%d): %w", g.UUID, g.Minor, err)
	}
	if len(devices) != 1 || len(devices[0].ContainerEdits.DeviceNodes) == 0 {
		return nil, fmt.Errorf("find the device nodes of GPU %s: /dev/nvidia%d is missing: load the nvidia kernel module or run nvidia-modprobe -c %d",
			g.UUID, g.Minor, g.Minor)
	}
	devices[0].Name = g.PCI.DeviceName()
	return &devices[0], nil
}

// firstOf picks the error of the first GPU that has one.
func firstOf(node *gpu.Node, missing map[string]error) error {
	for i := range node.GPUs {
		if err := missing[node.GPUs[i].PCI.DeviceName()]; err != nil {
			return err
		}
	}
	return errors.New("the node has no GPUs")
}

// finish rewrites paths to the host's and sets the oldest version that can say all this: older runtimes refuse newer
// specs.
func (s *Static) finish(spec *specs.Spec) error {
	toHost := root.New(root.WithRoot(s.opts.ContainerDriverRoot), root.WithTargetRoot(s.opts.DriverRoot), root.WithRelativeTo("host"))
	if err := toHost.Transform(spec); err != nil {
		return fmt.Errorf("rewrite paths of the CDI spec to the host's: %w", err)
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return fmt.Errorf("work out the version of the CDI spec: %w", err)
	}
	spec.Version = version
	return nil
}

// save writes the static spec; the caller holds mu.
func (s *Static) save() error { return s.write(s.spec, s.fileName()) }

// write puts a spec where runtimes look, whole or not at all.
func (s *Static) write(spec *specs.Spec, file string) error {
	if err := os.MkdirAll(s.opts.Dir, 0o755); err != nil { //nolint:gosec // runtimes and their users read this folder
		return fmt.Errorf("make the CDI folder: %w", err)
	}
	if err := s.cache.WriteSpec(spec, file); err != nil {
		return fmt.Errorf("write the CDI spec %s: %w", filepath.Join(s.opts.Dir, file), err)
	}
	return nil
}

// Ensure fails unless a runtime can resolve the ids now: the spec is there as we wrote it (it is written again if need
// be), it has the device, and the device's nodes exist.
func (s *Static) Ensure(ctx context.Context, ids []string) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.spec == nil {
		return errors.New("the CDI spec is not written yet")
	}
	for _, id := range ids {
		name, ok := strings.CutPrefix(id, s.DeviceID(""))
		if !ok {
			return fmt.Errorf("CDI device %s is not of kind %s", id, s.spec.Kind)
		}
		if err := s.missing[name]; err != nil {
			return err
		}
		nodes, ok := s.nodes[name]
		if !ok {
			return fmt.Errorf("CDI device %s is not in %s", id, s.Path())
		}
		for _, path := range nodes {
			if _, err := os.Lstat(path); err != nil {
				return fmt.Errorf("CDI device %s: its device node is missing (load the nvidia kernel module or run nvidia-modprobe): %w", id, err)
			}
		}
	}
	return s.restore(ctx)
}

// restore writes the spec again if somebody deleted or changed its file; the caller holds mu. As long as nobody does,
// it costs one look at the file's dates.
func (s *Static) restore(ctx context.Context) error {
	s.fileMu.Lock()
	defer s.fileMu.Unlock()
	info, err := os.Lstat(s.Path())
	if err == nil && s.written != nil && os.SameFile(info, s.written) && info.ModTime().Equal(s.written.ModTime()) && info.Size() == s.written.Size() {
		return nil
	}
	want, err := json.Marshal(s.spec)
	if err != nil {
		return fmt.Errorf("encode the CDI spec: %w", err)
	}
	have, err := os.ReadFile(s.Path())
	if err != nil || !bytes.Equal(have, want) {
		klog.FromContext(ctx).Info("The CDI spec is missing or was changed; writing it again", "path", s.Path())
		if err := s.save(); err != nil {
			return err
		}
	}
	if s.written, err = os.Lstat(s.Path()); err != nil {
		return fmt.Errorf("look at the CDI spec: %w", err)
	}
	return nil
}

// hostPath is where a device node is on the host; CDI leaves it out where it equals the path in the container.
func hostPath(n *specs.DeviceNode) string {
	if n.HostPath != "" {
		return n.HostPath
	}
	return n.Path
}

// logger hands nvcdi's messages to klog; it is chatty, so its information comes at V(4) and up.
type logger struct {
	to klog.Logger
}

func (l logger) Errorf(format string, args ...any)   { l.to.Error(nil, fmt.Sprintf(format, args...)) }
func (l logger) Warningf(format string, args ...any) { l.to.V(2).Info(fmt.Sprintf(format, args...)) }
func (l logger) Infof(format string, args ...any)    { l.to.V(4).Info(fmt.Sprintf(format, args...)) }
func (l logger) Debugf(format string, args ...any)   { l.to.V(6).Info(fmt.Sprintf(format, args...)) }
func (l logger) Tracef(format string, args ...any)   { l.to.V(8).Info(fmt.Sprintf(format, args...)) }
