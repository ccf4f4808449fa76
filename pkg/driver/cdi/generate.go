// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// builder builds the spec of a node once.
type builder struct {
	*Options
	root   driverroot.Root // of the driver's files
	node   *gpu.Node
	lib    nvcdi.Interface // nil before newLibrary
	result *generated
}

// generate finds the driver's device nodes and files and builds the spec in memory.
func generate(ctx context.Context, opts *Options, node *gpu.Node) *generated {
	root := opts.root()
	g := &generated{devices: root.Devices(), missing: map[string]error{}, nodes: map[string][]deviceNode{}}
	b := &builder{Options: opts, root: root, node: node, result: g}
	g.err = b.build(ctx)
	return g
}

func (b *builder) build(ctx context.Context) error {
	if err := b.createMissing(ctx); err != nil {
		return err
	}
	if err := b.checkVersion(); err != nil {
		return err
	}
	var err error
	if b.lib, err = b.newLibrary(ctx); err != nil {
		return fmt.Errorf("search driver files under %s: %w", b.root.Here, err)
	}
	common, err := b.lib.GetCommonEdits()
	if err != nil {
		return fmt.Errorf("find the driver's files under %s: %w", b.root.Here, err)
	}
	g := b.result
	g.spec = &specs.Spec{Kind: b.Driver + "/" + Class, ContainerEdits: *common.ContainerEdits}
	g.common = nodesOf(&g.spec.ContainerEdits)
	var files []string
	for _, mount := range g.spec.ContainerEdits.Mounts {
		files = append(files, mount.HostPath)
	}
	g.files = newFileSet(files)
	for i := range b.node.GPUs {
		b.addGPU(ctx, &b.node.GPUs[i])
	}
	if len(g.spec.Devices) == 0 && len(g.missing) > 0 {
		return fmt.Errorf("find the device nodes of any GPU: %w", firstOf(b.node, g.missing))
	}
	return b.finish()
}

// newLibrary returns nvcdi's search for the driver's files.
func (b *builder) newLibrary(ctx context.Context) (nvcdi.Interface, error) {
	library, _ := b.root.NVML() // if there is none, the loader looks for it
	return nvcdi.New(
		nvcdi.WithNvmlLib(nvml.ByAddress(library, b.node)),
		nvcdi.WithLogger(logger{klog.FromContext(ctx)}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(b.root.Here),
		nvcdi.WithDevRoot(b.result.devices.Here),
		nvcdi.WithLibrarySearchPaths(b.root.LibrarySearchPaths()),
		nvcdi.WithVendor(b.Driver),
		nvcdi.WithClass(Class),
		nvcdi.WithNVIDIACDIHookPath(b.HookPath),
		// The IPC discoverer would mount the host's /tmp/nvidia-mps into every container, tenants' MPS servers included, and
		// the sockets of daemons that all tenants share (docs/decisions/ipc-sockets.md).
		// nvsandboxutils would load another driver library into this process, for nothing that Cleave needs.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableIPCDiscoverer, nvcdi.FeatureDisableNvsandboxUtils),
		// Limits come from the claim's share, never from a container's environment.
		nvcdi.WithDisabledHooks("apply-cuda-memory-limits"),
	)
}

// createMissing creates device nodes that are missing or left over from another driver. It fails if all containers would
// lack one; nodes of single GPUs become entries of missing.
func (b *builder) createMissing(ctx context.Context) error {
	g, node := b.result, b.node
	broken := b.brokenCommon()
	want := driverroot.Nodes{}
	for path := range broken {
		want.Control = want.Control || path == controlNode
		want.UVM = want.UVM || path == uvmNode
	}
	var names []string
	for i := range node.GPUs {
		if n := gpuNode(node.GPUs[i].Minor); n.check(g.devices.Here) != nil {
			want.GPUs = append(want.GPUs, node.GPUs[i].Minor)
			names = append(names, n.path)
		}
	}
	if len(broken) == 0 && len(names) == 0 {
		return nil
	}
	var failed error
	if b.CreateNodes != nil {
		failed = b.CreateNodes(ctx, want)
		klog.FromContext(ctx).Info("Ran nvidia-modprobe to create missing device nodes",
			"control", broken, "gpus", names, "devRoot", g.devices.Host, "err", failed)
		g.devices = b.root.Devices()
	}
	broken = b.brokenCommon()
	for _, common := range []struct{ path, args string }{{controlNode, "-c 255"}, {uvmNode, "-c 0 -u"}} {
		if why := broken[common.path]; why != nil {
			return fmt.Errorf("%w: %s", why, remedy(common.args, failed))
		}
	}
	for i := range node.GPUs {
		board := &node.GPUs[i]
		if why := gpuNode(board.Minor).check(g.devices.Here); why != nil {
			g.missing[board.PCI.DeviceName()] = fmt.Errorf("GPU %s: %w: %s", board.UUID, why, remedy("-c "+strconv.Itoa(board.Minor), failed))
		}
	}
	return nil
}

// remedy ends a message with what an admin can run, and why the plugin itself failed to.
func remedy(args string, failed error) string {
	text := "run nvidia-modprobe " + args + " on the node"
	if failed != nil {
		text += "; the plugin could not: " + failed.Error()
	}
	return text
}

// brokenCommon returns the errors of the device nodes that every container needs, by path.
func (b *builder) brokenCommon() map[string]error {
	broken := map[string]error{}
	nodes, err := mandatoryNodes(majors(b.Procfs))
	if err != nil {
		broken[uvmNode] = err
	}
	for _, n := range nodes {
		if err := n.check(b.result.devices.Here); err != nil {
			broken[n.path] = err
		}
	}
	return broken
}

// checkVersion fails if the driver's files belong to another release than the loaded kernel module, as after an update of
// its packages: containers would get libraries that the kernel module refuses. Unknown versions are not an error.
func (b *builder) checkVersion() error {
	node := b.node
	installed, err := b.root.Versions()
	if err != nil || len(installed) == 0 || node.DriverVersion == "" || slices.Contains(installed, node.DriverVersion) {
		return nil //nolint:nilerr // missing files are reported later
	}
	return fmt.Errorf("the loaded kernel module is %s, but the driver's files under %s are %s: load the new driver "+
		"(reboot the node, or drain it and reload the kernel module)", node.DriverVersion, b.root.Host, strings.Join(installed, ", "))
}

// partitionsSuffix distinguishes the CDI device for a GPU's partitions from that of the whole GPU.
const partitionsSuffix = "-mig"

// PartitionsID is the fully qualified CDI name of a GPU's part in its partitions: the device node, but no DRM node, which would
// give graphics programs access to the whole GPU. NVIDIA's toolkit gives DRM nodes to graphics profiles only
// (nvidia-container-toolkit, internal/platform-support/dgpu).
func (s *Static) PartitionsID(device string) string { return s.DeviceID(device) + partitionsSuffix }

// addGPU adds the CDI devices of one GPU, or the reason why it has none.
func (b *builder) addGPU(ctx context.Context, board *gpu.GPU) {
	g, name := b.result, board.PCI.DeviceName()
	var whole *specs.Device
	err := g.missing[name]
	if err == nil {
		whole, err = b.wholeGPU(board)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot inject a GPU into containers", "gpu", name)
		g.missing[name] = err
		return
	}
	devices := []specs.Device{*whole}
	if board.MIG.Capable {
		devices = append(devices, forPartitions(whole, gpuNode(board.Minor).path))
	}
	for _, d := range devices {
		g.nodes[d.Name] = nodesOf(&d.ContainerEdits)
		g.spec.Devices = append(g.spec.Devices, d)
	}
}

// wholeGPU returns the CDI device of a whole GPU under its DRA device name.
func (b *builder) wholeGPU(board *gpu.GPU) (*specs.Device, error) {
	devices, err := b.lib.GetDeviceSpecsByID(board.UUID)
	if err != nil {
		return nil, fmt.Errorf("find the device nodes of GPU %s (/dev/nvidia%d): %w", board.UUID, board.Minor, err)
	}
	if len(devices) != 1 || len(devices[0].ContainerEdits.DeviceNodes) == 0 {
		return nil, fmt.Errorf("find the device nodes of GPU %s: /dev/nvidia%d is missing: %s",
			board.UUID, board.Minor, remedy("-c "+strconv.Itoa(board.Minor), nil))
	}
	device := &devices[0]
	device.Name = board.PCI.DeviceName()
	device.ContainerEdits.Env = append(device.ContainerEdits.Env, uuidVariable+"="+board.UUID)
	b.addDRM(device, board)
	for _, h := range device.ContainerEdits.Hooks {
		linksInside(h, b.result.devices.Here)
	}
	return device, nil
}

// forPartitions is the CDI device of a GPU's partitions: only the GPU's own device node.
func forPartitions(whole *specs.Device, path string) specs.Device {
	d := specs.Device{Name: whole.Name + partitionsSuffix}
	for _, n := range whole.ContainerEdits.DeviceNodes {
		if n.Path == path {
			own := *n // finish modifies each copy
			d.ContainerEdits.DeviceNodes = append(d.ContainerEdits.DeviceNodes, &own)
		}
	}
	return d
}

// linksInside strips the driver root, as this process sees it, from the links that a hook creates in a container: nvcdi
// prefixes those of /dev/dri/by-path with it.
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

func nodesOf(edits *specs.ContainerEdits) []deviceNode {
	var nodes []deviceNode
	for _, n := range edits.DeviceNodes {
		nodes = append(nodes, deviceNode{path: n.Path, major: n.Major, minor: n.Minor})
	}
	return nodes
}

// firstOf returns the error of the first GPU that has one.
func firstOf(node *gpu.Node, missing map[string]error) error {
	for i := range node.GPUs {
		if err := missing[node.GPUs[i].PCI.DeviceName()]; err != nil {
			return err
		}
	}
	return errors.New("the node has no GPUs")
}

// finish rewrites paths to the host's and sets the lowest sufficient version: older runtimes refuse newer specs.
func (b *builder) finish() error {
	g := b.result
	for _, r := range []struct{ here, host string }{
		{filepath.Join(g.devices.Here, "dev"), filepath.Join(g.devices.Host, "dev")}, // first: it may be nested in the other
		{b.root.Here, b.root.Host},
	} {
		if r.here == r.host {
			continue
		}
		toHost := root.New(root.WithRoot(r.here), root.WithTargetRoot(r.host), root.WithRelativeTo("host"))
		if err := toHost.Transform(g.spec); err != nil {
			return fmt.Errorf("rewrite paths of the CDI spec to the host's: %w", err)
		}
	}
	dropHostPaths(g.spec)
	version, err := specs.MinimumRequiredVersion(g.spec)
	if err != nil {
		return fmt.Errorf("determine the version of the CDI spec: %w", err)
	}
	g.spec.Version = version
	return nil
}

// dropHostPaths omits host paths that equal the container path, which older runtimes require.
func dropHostPaths(spec *specs.Spec) {
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

// addDRM adds the DRM nodes of a GPU, /dev/dri/cardN and renderDN, which graphics programs use, unless nvcdi has added
// them: nvcdi searches only this process's /sys.
func (b *builder) addDRM(device *specs.Device, g *gpu.GPU) {
	for _, n := range drmNodes(b.Sysfs, g) {
		path := filepath.Join(b.result.devices.Here, n)
		info, err := os.Lstat(path)
		added := func(d *specs.DeviceNode) bool { return d.Path == n }
		if err != nil || slices.ContainsFunc(device.ContainerEdits.DeviceNodes, added) {
			continue
		}
		if major, minor, ok := numbers(info); ok {
			device.ContainerEdits.DeviceNodes = append(device.ContainerEdits.DeviceNodes,
				&specs.DeviceNode{Path: n, HostPath: path, Major: major, Minor: minor, Permissions: "rwm"})
		}
	}
}
