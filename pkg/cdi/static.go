// SPDX-License-Identifier: Apache-2.0

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
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/driverroot"
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
	// Sysfs is the node's /sys, by which the DRM nodes of GPUs are found; nil for none.
	Sysfs fs.FS
	// HookPath is the nvidia-cdi-hook program on the host, see package hook.
	HookPath string
	// MemoryHookPath is the cleave-memory-limit program on the host, which specs name only where the driver limits memory.
	MemoryHookPath string
	// MakeNodes makes device nodes that are missing; nil to leave that to others.
	MakeNodes func(ctx context.Context, nodes driverroot.Nodes) error
	// Changed is called after Troubles has changed, from any goroutine; nil for nobody to hear of it.
	Changed func()
}

// Static is the spec of a node.
type Static struct {
	opts Options
	// cache writes specs. It is made once: making one parses every spec in the folder.
	cache *cdi.Cache
	now   func() time.Time

	// making is held while the spec is made; node is what it is made of, tried when that was last begun.
	making sync.Mutex
	node   *gpu.Node
	tried  time.Time

	mu     sync.RWMutex
	made   *made          // nil before it was tried
	minors map[string]int // device name -> N of /dev/nvidiaN

	fileMu  sync.Mutex
	written os.FileInfo // the spec's file as it was when it last was as it should be
}

// made is what a look at the driver's files and device nodes gave.
type made struct {
	// err is why no GPU can be given to a container; nil if there is a spec.
	err  error
	spec *specs.Spec
	// missing says by device name why a GPU cannot be given to a container.
	missing map[string]error
	// nodes are the device nodes of each device, below devices; common those of all containers.
	nodes   map[string][]deviceNode
	common  []deviceNode
	devices driverroot.Root
	// files are what containers mount, as this process sees them.
	files []string
}

// retryAfter is the least time between two attempts of Ensure to make the spec: pods whose claims fail are tried again and
// again, and an attempt may run nvidia-modprobe.
const retryAfter = 2 * time.Second

// NewStatic checks the options. Refresh makes the spec.
func NewStatic(opts Options) (*Static, error) {
	opts.DriverRoot, opts.ContainerDriverRoot = filepath.Clean(opts.DriverRoot), filepath.Clean(opts.ContainerDriverRoot)
	if opts.ContainerDriverRoot == "/" && opts.DriverRoot != "/" {
		return nil, fmt.Errorf("driver root %s on the host is seen as / by the plugin: mount it elsewhere and set --container-driver-root", opts.DriverRoot)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(opts.Dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("open the CDI folder %s: %w", opts.Dir, err)
	}
	return &Static{opts: opts, cache: cache, now: time.Now}, nil
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

// Refresh looks for the driver's files and device nodes, has missing nodes made, and puts the spec where runtimes look. A
// GPU whose device node is not as it has to be is left out, see Troubles; the others are served. The error is why there is
// no spec, or an incomplete one would have been written: an earlier one stays as it is then.
func (s *Static) Refresh(ctx context.Context, node *gpu.Node) error {
	s.making.Lock()
	defer s.making.Unlock()
	return s.refresh(ctx, node)
}

// refresh is Refresh; the caller holds making.
func (s *Static) refresh(ctx context.Context, node *gpu.Node) error {
	s.node, s.tried = node, s.now()
	before := s.Troubles()
	next := s.look(ctx, node)
	minors := map[string]int{}
	for i := range node.GPUs {
		minors[node.GPUs[i].PCI.DeviceName()] = node.GPUs[i].Minor
	}
	s.mu.Lock()
	if next.err == nil {
		if s.made == nil || s.made.spec == nil || !sameSpec(s.made.spec, next.spec) {
			s.fileMu.Lock()
			s.written = nil
			s.fileMu.Unlock()
		}
	}
	s.made, s.minors = next, minors
	s.mu.Unlock()
	if s.opts.Changed != nil && !sameTroubles(before, s.Troubles()) {
		s.opts.Changed()
	}
	if next.err != nil {
		return next.err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.restore(ctx)
}

func sameSpec(a, b *specs.Spec) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func sameTroubles(a, b map[string]error) bool {
	return maps.EqualFunc(a, b, func(x, y error) bool { return x.Error() == y.Error() })
}

// Troubles says by device name why GPUs cannot be given to containers. Only those that can be are not in it.
func (s *Static) Troubles() map[string]error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.made == nil {
		return nil
	}
	if s.made.err == nil {
		return maps.Clone(s.made.missing)
	}
	troubles := map[string]error{}
	for device := range s.minors {
		troubles[device] = s.made.err
		if err := s.made.missing[device]; err != nil {
			troubles[device] = err
		}
	}
	return troubles
}

// Ensure fails unless a container can be started with the devices of the ids now: the spec is complete and on disk as we
// wrote it, and the device nodes and files that it names are there. What has changed is looked for anew, which also has
// missing device nodes made; as long as nothing has, it costs a look at each.
func (s *Static) Ensure(ctx context.Context, ids []string) error {
	if why := s.check(ids); why != nil {
		if err := s.again(ctx, ids, why); err != nil {
			return err
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.restore(ctx)
}

// Complete fails if the spec is not that of these GPUs, or Ensure would fail for one of them.
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
		return errors.New("the CDI spec is of other GPUs than the node has")
	}
	return s.check(ids)
}

// again makes the spec anew, unless that was just tried, and checks it.
func (s *Static) again(ctx context.Context, ids []string, why error) error {
	s.making.Lock()
	defer s.making.Unlock()
	if s.node == nil || s.check(ids) == nil { // another call made it
		return s.check(ids)
	}
	if s.now().Sub(s.tried) < retryAfter {
		return why
	}
	klog.FromContext(ctx).Info("The CDI spec is out of date; making it again", "reason", why.Error())
	if err := s.refresh(ctx, s.node); err != nil {
		return err
	}
	return s.check(ids)
}

// check compares the spec with what is there.
func (s *Static) check(ids []string) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.made == nil {
		return errors.New("the CDI spec is not written yet")
	}
	if s.made.err != nil {
		return s.made.err
	}
	if err := s.made.checkCommon(s.majors()); err != nil {
		return err
	}
	for _, id := range ids {
		name, ok := strings.CutPrefix(id, s.DeviceID(""))
		if !ok {
			return fmt.Errorf("CDI device %s is not of kind %s", id, s.made.spec.Kind)
		}
		if err := s.made.missing[strings.TrimSuffix(name, partitionsSuffix)]; err != nil {
			return err
		}
		nodes, ok := s.made.nodes[name]
		if !ok {
			return fmt.Errorf("CDI device %s is not in %s", id, s.Path())
		}
		for _, n := range nodes {
			if err := n.check(s.made.devices.Here); err != nil {
				return fmt.Errorf("CDI device %s: %w", id, err)
			}
		}
	}
	return nil
}

// checkCommon looks whether what every container gets is still there and as it was.
func (m *made) checkCommon(majors map[string]int64) error {
	if major, listed := majors[uvmModule]; listed && !m.has(uvmNode, major) {
		return fmt.Errorf("%w %s has another major than the module %s, which was loaded again", errNode, uvmNode, uvmModule)
	}
	for _, n := range m.common {
		if err := n.check(m.devices.Here); err != nil {
			return err
		}
	}
	for _, path := range []string{uvmToolsNode, modesetNode} {
		if _, err := os.Lstat(filepath.Join(m.devices.Here, path)); err == nil && !m.has(path, anyMajor) {
			return fmt.Errorf("%w %s is there by now", errNode, path)
		}
	}
	for _, file := range m.files {
		if _, err := os.Lstat(file); err != nil {
			return fmt.Errorf("a file of the driver has gone, as after an update of its packages: %w", err)
		}
	}
	return nil
}

// has reports whether all containers get a device node, of a major where one is given.
func (m *made) has(path string, major int64) bool {
	for _, n := range m.common {
		if n.path == path {
			return major == anyMajor || n.major == major
		}
	}
	return false
}

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

// restore writes the spec if its file is not as it should be, such as after somebody deleted or changed it; the caller
// holds mu. As long as nobody does, it costs one look at the file's dates.
func (s *Static) restore(ctx context.Context) error {
	s.fileMu.Lock()
	defer s.fileMu.Unlock()
	info, err := os.Lstat(s.Path())
	if err == nil && s.written != nil && os.SameFile(info, s.written) && info.ModTime().Equal(s.written.ModTime()) && info.Size() == s.written.Size() {
		return nil
	}
	want, err := json.Marshal(s.made.spec)
	if err != nil {
		return fmt.Errorf("encode the CDI spec: %w", err)
	}
	have, err := os.ReadFile(s.Path())
	if err != nil || !bytes.Equal(have, want) {
		klog.FromContext(ctx).Info("Writing the CDI spec: it is missing or out of date", "path", s.Path())
		if err := s.write(s.made.spec, s.fileName()); err != nil {
			return err
		}
	}
	if s.written, err = os.Lstat(s.Path()); err != nil {
		return fmt.Errorf("look at the CDI spec: %w", err)
	}
	return nil
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
