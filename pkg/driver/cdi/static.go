// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// Class of the CDI kind "<driver name>/gpu".
const Class = "gpu"

// Options configure a Static.
type Options struct {
	// Driver is the DRA driver's name and the vendor of the CDI kind, so that two drivers cannot conflict.
	Driver string
	// Dir is the directory that container runtimes read specs from, such as /var/run/cdi.
	Dir string
	// DriverRoot is the driver's root on the host, as a container runtime sees it.
	DriverRoot string
	// ContainerDriverRoot is the same directory as this process sees it.
	ContainerDriverRoot string
	// Procfs is the node's /proc.
	Procfs fs.FS
	// Sysfs is the node's /sys, which lists the DRM nodes of GPUs; nil for none.
	Sysfs fs.FS
	// HookPath is the nvidia-cdi-hook program on the host, see package hook.
	HookPath string
	// MemoryHookPath is the cleave-memory-limit program on the host. Specs name it only if the driver limits memory.
	MemoryHookPath string
	// CreateNodes creates missing device nodes; nil disables it.
	CreateNodes func(ctx context.Context, nodes driverroot.Nodes) error
	// Search is called before GPUs are opened to find their files, and done after; an error keeps the spec as it is. May be nil.
	Search func() (done func(), err error)
	// Changed is called from any goroutine after Problems has changed; may be nil.
	Changed func()
}

// Static is the spec of a node.
type Static struct {
	opts Options
	dir  *specDir
	file specFile
	now  func() time.Time

	// generating serialises the generation of the spec from node, last attempted at tried. searching is the last search that outlived its
	// caller; nil for none.
	generating sync.Mutex
	node       *gpu.Node
	tried      time.Time
	searching  *lateSearch

	creating attempts // of capability nodes

	// mu is not held while a disk is waited for: the control loop takes it.
	mu        sync.RWMutex
	generated *generated     // nil before the first attempt; its content does not change
	minors    map[string]int // device name -> N of /dev/nvidiaN
}

// generated is the result of searching the driver's files and device nodes.
type generated struct {
	// err is why no GPU can be injected into a container; nil if there is a spec.
	err  error
	spec *specs.Spec
	// missing is why a GPU cannot be injected into a container, by device name.
	missing map[string]error
	// nodes are the device nodes of each device, below devices; common those of all containers.
	nodes   map[string][]deviceNode
	common  []deviceNode
	devices driverroot.Root
	// files are what containers mount, as this process sees them.
	files *fileSet
}

// retryAfter is the minimum time between two attempts of Ensure to generate the spec: the kubelet retries failing claims
// frequently, and an attempt may run nvidia-modprobe.
const retryAfter = 2 * time.Second

// NewStatic checks the options. Refresh writes the spec.
func NewStatic(opts Options) (*Static, error) {
	opts.DriverRoot, opts.ContainerDriverRoot = filepath.Clean(opts.DriverRoot), filepath.Clean(opts.ContainerDriverRoot)
	if opts.ContainerDriverRoot == "/" && opts.DriverRoot != "/" {
		return nil, fmt.Errorf("driver root %s on the host is seen as / by the plugin: mount it elsewhere and set --container-driver-root",
			opts.DriverRoot)
	}
	dir := openSpecDir(opts.Dir, opts.Driver)
	return &Static{opts: opts, dir: dir, file: specFile{dir: dir, name: staticFile(opts.Driver)}, now: time.Now, creating: newAttempts()}, nil
}

// Path is the file of the spec.
func (s *Static) Path() string { return s.opts.path() }

func (o *Options) path() string { return filepath.Join(o.Dir, staticFile(o.Driver)) }

func (o *Options) root() driverroot.Root {
	return driverroot.Root{Host: o.DriverRoot, Here: o.ContainerDriverRoot}
}

func staticFile(driver string) string { return cdi.GenerateSpecName(driver, Class) + ".json" }

// DeviceID is the fully qualified CDI name of a whole GPU.
func (s *Static) DeviceID(device string) string {
	return s.opts.Driver + "/" + Class + "=" + device
}

// Refresh finds the driver's files and device nodes, creates missing nodes, and writes the spec. GPUs with a wrong device
// node are omitted, see Problems; the others are served. If the spec would be incomplete, Refresh returns an error and
// leaves the earlier one unchanged.
func (s *Static) Refresh(ctx context.Context, node *gpu.Node) error {
	s.generating.Lock()
	defer s.generating.Unlock()
	return s.refresh(ctx, node)
}

// refresh is Refresh; the caller must hold generating.
func (s *Static) refresh(ctx context.Context, node *gpu.Node) error {
	s.node = node
	next, err := s.search(ctx, node)
	if err != nil && (s.generated != nil || !errors.Is(err, gpu.ErrHangs)) {
		return err
	}
	if err != nil {
		next = &generated{err: err} // the GPUs need a reason why they cannot be injected
	}
	before := s.Problems()
	minors := map[string]int{}
	for i := range node.GPUs {
		minors[node.GPUs[i].PCI.DeviceName()] = node.GPUs[i].Minor
	}
	s.mu.Lock()
	s.generated, s.minors = next, minors
	s.mu.Unlock()
	same := func(x, y error) bool { return x.Error() == y.Error() }
	if s.opts.Changed != nil && !maps.EqualFunc(before, s.Problems(), same) {
		s.opts.Changed()
	}
	if next.err != nil {
		return next.err
	}
	s.file.distrust() // compare it with the new spec
	return s.file.restore(ctx, s.spec)
}

// spec is the present one, or why there is none.
func (s *Static) spec() (*specs.Spec, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.generated.spec, s.generated.err
}

// Problems are the reasons why GPUs cannot be injected into containers, by device name.
func (s *Static) Problems() map[string]error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.generated == nil {
		return nil
	}
	if s.generated.err == nil {
		return maps.Clone(s.generated.missing)
	}
	problems := map[string]error{}
	for device := range s.minors {
		problems[device] = s.generated.err
		if err := s.generated.missing[device]; err != nil {
			problems[device] = err
		}
	}
	return problems
}

// Ensure fails unless a container can start with the devices of the ids: the spec is complete and unchanged on disk, and
// the device nodes and files that it names exist. If something has changed, Ensure generates the spec again, which also
// creates missing device nodes; otherwise it costs one stat per node and directory.
func (s *Static) Ensure(ctx context.Context, ids []string) error {
	if why := s.check(ids); why != nil {
		if err := s.regenerate(ctx, ids, why); err != nil {
			return err
		}
	}
	return s.file.restore(ctx, s.spec)
}

// Complete fails if the spec belongs to other GPUs, or if Ensure would fail for one of them.
func (s *Static) Complete(node *gpu.Node) error {
	var ids []string
	for i := range node.GPUs {
		ids = append(ids, s.DeviceID(node.GPUs[i].PCI.DeviceName()))
	}
	s.mu.RLock()
	known := len(s.minors) == len(node.GPUs)
	for i := range node.GPUs {
		minor, ok := s.minors[node.GPUs[i].PCI.DeviceName()]
		known = known && ok && minor == node.GPUs[i].Minor
	}
	s.mu.RUnlock()
	if !known {
		return errors.New("the CDI spec belongs to other GPUs than the node has")
	}
	return s.check(ids)
}

// regenerate generates the spec again, unless that was just tried, and checks it.
func (s *Static) regenerate(ctx context.Context, ids []string, why error) error {
	s.generating.Lock()
	defer s.generating.Unlock()
	if s.node == nil || s.check(ids) == nil { // another call generated it
		return s.check(ids)
	}
	if s.now().Sub(s.tried) < retryAfter {
		return why
	}
	klog.FromContext(ctx).Info("Regenerating the CDI spec: it is out of date", "reason", why.Error())
	if err := s.refresh(ctx, s.node); err != nil {
		return err
	}
	return s.check(ids)
}

// check compares the spec with the existing device nodes and files.
func (s *Static) check(ids []string) error {
	s.mu.RLock()
	g := s.generated
	s.mu.RUnlock()
	if g == nil {
		return errors.New("the CDI spec is not written yet")
	}
	return g.check(&s.opts, s.now(), ids)
}

// check compares the spec's devices of the ids with the existing device nodes and files.
func (g *generated) check(opts *Options, now time.Time, ids []string) error {
	if g.err != nil {
		return g.err
	}
	if err := g.checkCommon(majors(opts.Procfs), now); err != nil {
		return err
	}
	for _, id := range ids {
		name, ok := strings.CutPrefix(id, g.spec.Kind+"=")
		if !ok {
			return fmt.Errorf("CDI device %s is not of kind %s", id, g.spec.Kind)
		}
		if err := g.missing[strings.TrimSuffix(name, partitionsSuffix)]; err != nil {
			return err
		}
		nodes, ok := g.nodes[name]
		if !ok {
			return fmt.Errorf("CDI device %s is not in %s", id, opts.path())
		}
		for _, n := range nodes {
			if err := n.check(g.devices.Here); err != nil {
				return fmt.Errorf("CDI device %s: %w", id, err)
			}
		}
	}
	return nil
}

// checkCommon checks the device nodes and files that every container gets.
func (g *generated) checkCommon(majors map[string]int64, now time.Time) error {
	if major, listed := majors[uvmModule]; listed && !g.has(uvmNode, major) {
		return fmt.Errorf("%w %s has another major than the module %s, which was reloaded", errNode, uvmNode, uvmModule)
	}
	for _, n := range g.common {
		if err := n.check(g.devices.Here); err != nil {
			return err
		}
	}
	for _, path := range []string{uvmToolsNode, modesetNode} {
		if _, err := os.Lstat(filepath.Join(g.devices.Here, path)); err == nil && !g.has(path, anyMajor) {
			return fmt.Errorf("%w %s was created meanwhile", errNode, path)
		}
	}
	if err := g.files.check(now); err != nil {
		return fmt.Errorf("a file of the driver is missing, as after an update of its packages: %w", err)
	}
	return nil
}

// has reports whether all containers get a device node with a major number.
func (g *generated) has(path string, major int64) bool {
	return slices.ContainsFunc(g.common, func(n deviceNode) bool { return n.path == path && (major == anyMajor || n.major == major) })
}

// logger passes nvcdi's messages to klog, its frequent informational ones at V(4) and up.
type logger struct {
	to klog.Logger
}

func (l logger) Errorf(format string, args ...any)   { l.to.Error(nil, fmt.Sprintf(format, args...)) }
func (l logger) Warningf(format string, args ...any) { l.to.V(2).Info(fmt.Sprintf(format, args...)) }
func (l logger) Infof(format string, args ...any)    { l.to.V(4).Info(fmt.Sprintf(format, args...)) }
func (l logger) Debugf(format string, args ...any)   { l.to.V(6).Info(fmt.Sprintf(format, args...)) }
func (l logger) Tracef(format string, args ...any)   { l.to.V(8).Info(fmt.Sprintf(format, args...)) }
