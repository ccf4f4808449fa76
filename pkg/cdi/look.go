// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// look finds the driver's device nodes and files and makes the spec in memory.
func (s *Static) look(ctx context.Context, node *gpu.Node) *made {
	driver := driverroot.Root{Host: s.opts.DriverRoot, Here: s.opts.ContainerDriverRoot}
	m := &made{devices: driver.Devices(), missing: map[string]error{}, nodes: map[string][]deviceNode{}}
	if m.err = s.makeMissing(ctx, m, node); m.err != nil {
		return m
	}
	if m.err = s.checkVersion(driver, node); m.err != nil {
		return m
	}
	lib, err := s.newLibrary(ctx, m.devices)
	if err != nil {
		m.err = fmt.Errorf("prepare to look for driver files under %s: %w", s.opts.ContainerDriverRoot, err)
		return m
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		m.err = fmt.Errorf("find the driver's files under %s: %w", s.opts.ContainerDriverRoot, err)
		return m
	}
	m.spec = &specs.Spec{Kind: s.opts.Driver + "/" + Class, ContainerEdits: *common.ContainerEdits}
	m.common = nodesOf(&m.spec.ContainerEdits)
	for _, mount := range m.spec.ContainerEdits.Mounts {
		m.files = append(m.files, mount.HostPath)
	}
	for i := range node.GPUs {
		s.addGPU(ctx, m, lib, &node.GPUs[i])
	}
	if len(m.spec.Devices) == 0 && len(m.missing) > 0 {
		m.err = fmt.Errorf("find the device nodes of any GPU: %w", firstOf(node, m.missing))
		return m
	}
	m.err = s.finish(m)
	return m
}

// newLibrary is what finds the driver's files.
func (s *Static) newLibrary(ctx context.Context, devices driverroot.Root) (nvcdi.Interface, error) {
	return nvcdi.New(
		nvcdi.WithLogger(logger{klog.FromContext(ctx)}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(s.opts.ContainerDriverRoot),
		nvcdi.WithDevRoot(devices.Here),
		nvcdi.WithVendor(s.opts.Driver),
		nvcdi.WithClass(Class),
		nvcdi.WithNVIDIACDIHookPath(s.opts.HookPath),
		// IPC: would mount the host's /tmp/nvidia-mps into every container, tenants' MPS servers included, and the sockets of
		// daemons that all tenants share (docs/decisions/ipc-sockets.md).
		// nvsandboxutils: loads one more driver library into this process for nothing we need.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableIPCDiscoverer, nvcdi.FeatureDisableNvsandboxUtils),
		// Limits come from the claim's share, never from what a container says in its environment.
		nvcdi.WithDisabledHooks("apply-cuda-memory-limits"),
	)
}

// makeMissing has device nodes made that are missing or left over from another driver, and fails if a container of any
// GPU would lack one. Those of single GPUs are looked at later: each is its own GPU's trouble.
func (s *Static) makeMissing(ctx context.Context, m *made, node *gpu.Node) error {
	broken := s.brokenCommon(m.devices)
	want := driverroot.Nodes{}
	for path := range broken {
		want.Control = want.Control || path == controlNode
		want.UVM = want.UVM || path == uvmNode
	}
	var names []string
	for i := range node.GPUs {
		if n := gpuNode(node.GPUs[i].Minor); n.check(m.devices.Here) != nil {
			want.GPUs = append(want.GPUs, node.GPUs[i].Minor)
			names = append(names, n.path)
		}
	}
	if len(broken) == 0 && len(names) == 0 {
		return nil
	}
	var failed error
	if s.opts.MakeNodes != nil {
		failed = s.opts.MakeNodes(ctx, want)
		klog.FromContext(ctx).Info("Device nodes of the driver were missing; ran the driver's nvidia-modprobe",
			"control", broken, "gpus", names, "devRoot", m.devices.Host, "err", failed)
		m.devices = driverroot.Root{Host: s.opts.DriverRoot, Here: s.opts.ContainerDriverRoot}.Devices()
	}
	broken = s.brokenCommon(m.devices)
	for _, path := range []string{controlNode, uvmNode} {
		if why := broken[path]; why != nil {
			return fmt.Errorf("%w: run %s on the node%s", why, map[string]string{controlNode: "nvidia-modprobe -c 255", uvmNode: "nvidia-modprobe -c 0 -u"}[path], because(failed))
		}
	}
	for i := range node.GPUs {
		g := &node.GPUs[i]
		if why := gpuNode(g.Minor).check(m.devices.Here); why != nil {
			m.missing[g.PCI.DeviceName()] = fmt.Errorf("GPU %s: %w: run nvidia-modprobe -c %d on the node%s", g.UUID, why, g.Minor, because(failed))
		}
	}
	return nil
}

// because ends a sentence with why the plugin itself could not do it.
func because(err error) string {
	if err == nil {
		return ""
	}
	return "; the plugin could not: " + err.Error()
}

// brokenCommon says by path which device nodes that every container needs are not as they have to be.
func (s *Static) brokenCommon(devices driverroot.Root) map[string]error {
	broken := map[string]error{}
	nodes, err := mandatoryNodes(s.majors())
	if err != nil {
		broken[uvmNode] = err
	}
	for _, n := range nodes {
		if err := n.check(devices.Here); err != nil {
			broken[n.path] = err
		}
	}
	return broken
}

// checkVersion fails if the driver's files are of another release than the driver in the kernel, as after an update of
// its packages: containers would get libraries that the kernel refuses. Where nothing tells, it does not.
func (s *Static) checkVersion(driver driverroot.Root, node *gpu.Node) error {
	installed, err := driver.Versions()
	if err != nil || len(installed) == 0 || node.DriverVersion == "" {
		return nil //nolint:nilerr // what is missing is found later
	}
	for _, version := range installed {
		if version == node.DriverVersion {
			return nil
		}
	}
	return fmt.Errorf("the driver in the kernel is %s and its files under %s are %s: load the new driver (reboot the node, or drain it and reload the kernel module)",
		node.DriverVersion, s.opts.DriverRoot, strings.Join(installed, ", "))
}

// partitionsSuffix is what the name of a GPU's device for its partitions has more than that of the whole GPU.
const partitionsSuffix = "-mig"

// PartitionsID is the fully qualified CDI name of what a partition needs of its GPU: the device node, and nothing by which
// graphics programs come at all of the GPU. NVIDIA's toolkit gives DRM nodes to graphics profiles only
// (nvidia-container-toolkit, internal/platform-support/dgpu).
func (s *Static) PartitionsID(device string) string { return s.DeviceID(device) + partitionsSuffix }

// addGPU adds the CDI devices of one GPU, or why there are none.
func (s *Static) addGPU(ctx context.Context, m *made, lib nvcdi.Interface, g *gpu.GPU) {
	name := g.PCI.DeviceName()
	if m.missing[name] != nil {
		klog.FromContext(ctx).Error(m.missing[name], "A GPU cannot be given to containers", "gpu", name)
		return
	}
	whole, err := s.wholeGPU(m, lib, g)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A GPU cannot be given to containers", "gpu", name)
		m.missing[name] = err
		return
	}
	devices := []specs.Device{*whole}
	if g.MIG.Capable {
		devices = append(devices, forPartitions(whole, gpuNode(g.Minor).path))
	}
	for _, d := range devices {
		m.nodes[d.Name] = nodesOf(&d.ContainerEdits)
		m.spec.Devices = append(m.spec.Devices, d)
	}
}

// wholeGPU makes the CDI device of a whole GPU under our name for it.
func (s *Static) wholeGPU(m *made, lib nvcdi.Interface, g *gpu.GPU) (*specs.Device, error) {
	devices, err := lib.GetDeviceSpecsByID(g.UUID)
	if err != nil {
		return nil, fmt.Errorf("find the device nodes of GPU %s (/dev/nvidia%d): %w", g.UUID, g.Minor, err)
	}
	if len(devices) != 1 || len(devices[0].ContainerEdits.DeviceNodes) == 0 {
		return nil, fmt.Errorf("find the device nodes of GPU %s: /dev/nvidia%d is missing: run nvidia-modprobe -c %d on the node", g.UUID, g.Minor, g.Minor)
	}
	device := &devices[0]
	device.Name = g.PCI.DeviceName()
	s.addDRM(m.devices, device, g)
	for _, h := range device.ContainerEdits.Hooks {
		linksInside(h, m.devices.Here)
	}
	return device, nil
}

// forPartitions is the CDI device of a GPU's partitions: of the GPU's device nodes only the first.
func forPartitions(whole *specs.Device, path string) specs.Device {
	d := specs.Device{Name: whole.Name + partitionsSuffix}
	for _, n := range whole.ContainerEdits.DeviceNodes {
		if n.Path == path {
			own := *n // which finish changes for each by itself
			d.ContainerEdits.DeviceNodes = append(d.ContainerEdits.DeviceNodes, &own)
		}
	}
	return d
}

// linksInside takes the root as this process sees it out of the links that a hook makes in a container: nvcdi names those
// of /dev/dri/by-path below its root for device nodes.
func linksInside(h *specs.Hook, here string) {
	if here == "/" {
		return
	}
	for i, arg := range h.Args {
		if target, link, found := strings.Cut(arg, "::"); found {
			h.Args[i] = target + "::" + strings.TrimPrefix(link, here)
		}
	}
}

// nodesOf lists the device nodes that edits name.
func nodesOf(edits *specs.ContainerEdits) []deviceNode {
	var nodes []deviceNode
	for _, n := range edits.DeviceNodes {
		nodes = append(nodes, deviceNode{path: n.Path, major: n.Major, minor: n.Minor})
	}
	return nodes
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
func (s *Static) finish(m *made) error {
	for _, r := range []struct{ here, host string }{
		{filepath.Join(m.devices.Here, "dev"), filepath.Join(m.devices.Host, "dev")}, // first: it may lie below the other
		{s.opts.ContainerDriverRoot, s.opts.DriverRoot},
	} {
		if r.here == r.host {
			continue
		}
		toHost := root.New(root.WithRoot(r.here), root.WithTargetRoot(r.host), root.WithRelativeTo("host"))
		if err := toHost.Transform(m.spec); err != nil {
			return fmt.Errorf("rewrite paths of the CDI spec to the host's: %w", err)
		}
	}
	tidy(m.spec)
	version, err := specs.MinimumRequiredVersion(m.spec)
	if err != nil {
		return fmt.Errorf("work out the version of the CDI spec: %w", err)
	}
	m.spec.Version = version
	return nil
}

// tidy leaves the path on the host out where it is that in the container, which means the same and older runtimes
// understand.
func tidy(spec *specs.Spec) {
	edits := []*specs.ContainerEdits{&spec.ContainerEdits}
	for i := range spec.Devices {
		edits = append(edits, &spec.Devices[i].ContainerEdits)
	}
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			if n.HostPath == n.Path {
				n.HostPath = ""
			}
		}
	}
}

// addDRM adds the nodes by which graphics programs use a GPU, /dev/dri/cardN and renderDN, where nvcdi did not: it looks at
// this process's /sys alone.
func (s *Static) addDRM(devices driverroot.Root, device *specs.Device, g *gpu.GPU) {
	for _, n := range s.drmNodes(g) {
		path := filepath.Join(devices.Here, n)
		info, err := os.Lstat(path)
		if err != nil || hasNode(&device.ContainerEdits, n) {
			continue
		}
		if major, minor, ok := numbers(info); ok {
			device.ContainerEdits.DeviceNodes = append(device.ContainerEdits.DeviceNodes,
				&specs.DeviceNode{Path: n, HostPath: path, Major: major, Minor: minor, Permissions: "rwm"})
		}
	}
}

func hasNode(edits *specs.ContainerEdits, path string) bool {
	for _, n := range edits.DeviceNodes {
		if n.Path == path {
			return true
		}
	}
	return false
}
