// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Where a driver on Container-Optimized OS keeps its files below /home/kubernetes/bin/nvidia
// (GoogleCloudPlatform/container-engine-accelerators, nvidia-driver-installer).
const (
	flatLibraryDir = "lib64"
	flatBinaryDir  = "bin"
)

// WithFlatLayout puts libraries into lib64 and programs into bin, as GKE's driver has them.
func WithFlatLayout() Option { return func(o *options) { o.flat = true } }

// WithFirstMinor adds to the minor numbers of GPUs. Otherwise a search for users of a GPU by its device number would find those of
// other simulated nodes on the same machine.
func WithFirstMinor(n int) Option { return func(o *options) { o.firstMinor = n } }

// WithDevRoot puts the device files below another root's dev, so that the driver's own root has none, as on GKE.
func WithDevRoot(dir string) Option { return func(o *options) { o.devRoot = dir } }

// WithoutControlNodes creates a node on which no CUDA program has run since it booted: nvidia-uvm is not loaded, and its device
// files and nvidiactl are missing until nvidia-modprobe runs (nvidia-container-toolkit#1979).
func WithoutControlNodes() Option { return func(o *options) { o.noControlNodes = true } }

// WithPrograms installs a file as nvidia-smi and nvidia-modprobe in place of that of WithExecutable; it must behave according to
// its name. NVIDIA's are linked dynamically: they need a loader and a C library.
func WithPrograms(path string) Option { return func(o *options) { o.programs = path } }

// WithoutModprobe omits nvidia-modprobe, like distributions that package it separately.
func WithoutModprobe() Option { return func(o *options) { o.noModprobe = true } }

// WithFiles copies files of this machine below the root, by the same paths: a C library and its loader, which a driver container
// has, but GKE's driver does not.
func WithFiles(paths ...string) Option {
	return func(o *options) { o.files = append(o.files, paths...) }
}

// driverPrograms are those that WithPrograms installs.
var driverPrograms = []string{"nvidia-smi", "nvidia-modprobe"}

// createDriverPrograms installs the programs of WithPrograms and the files of WithFiles.
func createDriverPrograms(root string, _ *spec, o *options) error {
	for _, path := range o.files {
		if err := copyBelow(root, path, path); err != nil {
			return err
		}
	}
	if o.programs == "" {
		return nil
	}
	for _, name := range driverPrograms {
		if name == "nvidia-modprobe" && o.noModprobe {
			continue
		}
		if err := copyBelow(root, o.programs, filepath.Join(o.binaryDir(), name)); err != nil {
			return err
		}
	}
	return nil
}

// copyBelow copies a file to a path below a root, replacing an existing one.
func copyBelow(root, from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	file := filepath.Join(root, to)
	if err := makeDirectory(filepath.Dir(file)); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, data, 0o755)
}

func (o *options) libraryDir() string {
	if o.flat {
		return flatLibraryDir
	}
	return libraryDir
}

func (o *options) binaryDir() string {
	if o.flat {
		return flatBinaryDir
	}
	return binaryDir
}

// devRoot is the root with the device files of a node under root.
func (s *spec) devRoot(root string) string {
	if s.DevRoot != "" {
		return s.DevRoot
	}
	return root
}

// removeDevRoot removes the device files of a node from another root.
func removeDevRoot(root string) error {
	n, err := Open(root)
	if err != nil || n.spec.DevRoot == "" {
		return nil //nolint:nilerr // an incomplete node, or one without files elsewhere
	}
	var names []string
	for _, d := range n.spec.deviceNodes() {
		names = append(names, d.name)
	}
	for i := range n.spec.GPUs { // those created by nvidia-modprobe
		for offset := range capPerGPU {
			names = append(names, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", capGPUInstance(n.spec.GPUs[i].Minor, 0)+offset))
		}
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(n.spec.DevRoot, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// controlNodes are the device files that come with the first CUDA program.
var controlNodes = []string{"dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools", "dev/nvidia-modeset"}

// node finds a device file by its name, such as "nvidia-uvm" or "nvidia0".
func (s *spec) node(name string) (deviceNode, error) {
	nodes := s.deviceNodes()
	i := slices.IndexFunc(nodes, func(n deviceNode) bool { return n.name == "dev/"+name })
	if i < 0 {
		return deviceNode{}, fmt.Errorf("no device file is named %q", name)
	}
	return nodes[i], nil
}

// openDeviceNode opens the device file of a GPU with O_PATH, as there is no driver behind it; nil if missing.
func (f *Files) openDeviceNode(index int) *os.File {
	if !f.spec.DeviceNodes {
		return nil
	}
	path := filepath.Join(f.spec.devRoot(f.root), fmt.Sprintf("dev/nvidia%d", f.spec.GPUs[index].Minor))
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), path)
}

// openCapability opens the capability node of a GPU instance, which nvidia-modprobe creates if it is missing.
func (f *Files) openCapability(gpuMinor, gi int) (*os.File, error) {
	file := fmt.Sprintf("/%s/gi%d/access", capabilityDir(gpuMinor), gi)
	if err := f.ModprobeCapability(file); err != nil {
		return nil, err
	}
	path := filepath.Join(f.spec.devRoot(f.root), fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", capGPUInstance(gpuMinor, gi)))
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// RemoveDeviceNodes removes device files, by their names below /dev.
func (f *Files) RemoveDeviceNodes(names ...string) error {
	for _, name := range names {
		d, err := f.spec.node(name)
		if err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(f.spec.devRoot(f.root), d.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove device file: %w", err)
		}
	}
	return nil
}

// wrongMajor is not used by any driver of the node: it simulates a device file left behind by an earlier load of a module.
const wrongMajor = 240

// SpoilDeviceNodes gives device files an unused major.
func (f *Files) SpoilDeviceNodes(names ...string) error {
	for _, name := range names {
		d, err := f.spec.node(name)
		if err != nil {
			return err
		}
		if err := f.remakeNode(deviceNode{d.name, wrongMajor, d.minor}); err != nil {
			return err
		}
	}
	return nil
}

// remakeNode recreates a device file.
func (f *Files) remakeNode(d deviceNode) error {
	file := filepath.Join(f.spec.devRoot(f.root), d.name)
	if err := makeDirectory(filepath.Dir(file)); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace device file: %w", err)
	}
	return makeNode(file, d.major, d.minor)
}

// Modprobe simulates nvidia-modprobe: without uvm it creates nvidiactl (minor 255) and the nodes of GPUs, with uvm it loads
// nvidia-uvm and creates its two nodes (nvidia-modprobe.c, main).
func (f *Files) Modprobe(uvm bool, minors ...int) error {
	if uvm {
		if err := f.loadUVM(); err != nil {
			return fmt.Errorf("load nvidia-uvm: %w", err)
		}
		return errors.Join(f.restoreNode("nvidia-uvm"), f.restoreNode("nvidia-uvm-tools"))
	}
	for _, minor := range minors {
		name := fmt.Sprintf("nvidia%d", minor)
		switch minor {
		case minorCtl:
			name = "nvidiactl"
		case minorModeset:
			name = "nvidia-modeset"
		}
		if err := f.restoreNode(name); err != nil {
			return err
		}
	}
	return nil
}

// ModprobeCapability simulates nvidia-modprobe -f with a file such as /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access
// (nvidia-modprobe-utils.c, nvidia_cap_mknod).
func (f *Files) ModprobeCapability(file string) error {
	if !strings.HasPrefix(file, "/proc/driver/nvidia") || strings.Contains(file, "./") {
		return fmt.Errorf("%q is no capability file", file)
	}
	data, err := os.ReadFile(filepath.Join(f.root, file))
	if err != nil {
		return fmt.Errorf("read capability file: %w", err)
	}
	var minor int
	if _, err := fmt.Sscanf(string(data), "DeviceFileMinor: %d\n", &minor); err != nil {
		return fmt.Errorf("read capability file %s: %w", file, err)
	}
	return f.remakeNode(deviceNode{fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", minor), majorCaps, minor})
}

func (f *Files) restoreNode(name string) error {
	d, err := f.spec.node(name)
	if err != nil {
		return err
	}
	return f.remakeNode(d)
}

// loadUVM lists nvidia-uvm among the kernel's drivers.
func (f *Files) loadUVM() error {
	file := filepath.Join(f.root, "proc/devices")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Contains(data, []byte(" nvidia-uvm\n")) {
		return nil
	}
	text := strings.Replace(string(data), "\n\nBlock devices:", fmt.Sprintf("\n%d nvidia-uvm\n\nBlock devices:", majorUVM), 1)
	if err := os.WriteFile(file+".next", []byte(text), 0o444); err != nil {
		return err
	}
	return os.Rename(file+".next", file)
}

// withoutUVM is /proc/devices before nvidia-uvm is loaded.
func withoutUVM(files map[string]treeFile) {
	text := strings.Replace(string(files["proc/devices"].data), fmt.Sprintf("%d nvidia-uvm\n", majorUVM), "", 1)
	files["proc/devices"] = treeFile{data: []byte(text)}
}

// ReplaceLibraries simulates an update of the driver's packages while the old driver stays loaded: the libraries have another
// release's names, and the links point to them.
func (f *Files) ReplaceLibraries(version string) error {
	dir := filepath.Join(f.root, libraryDir)
	old, err := filepath.Glob(filepath.Join(dir, "*.so.*.*"))
	if err != nil {
		return err
	}
	for _, file := range old {
		base, _, _ := strings.Cut(filepath.Base(file), ".so.")
		next := base + ".so." + version
		if err := os.Rename(file, filepath.Join(dir, next)); err != nil {
			return fmt.Errorf("replace libraries: %w", err)
		}
		if err := relink(dir, filepath.Base(file), next); err != nil {
			return fmt.Errorf("replace libraries: %w", err)
		}
	}
	return nil
}

// relink points links in a directory to another file.
func relink(dir, from, to string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		link := filepath.Join(dir, e.Name())
		if target, err := os.Readlink(link); err != nil || target != from {
			continue
		}
		if err := errors.Join(os.Remove(link), os.Symlink(to, link)); err != nil {
			return err
		}
	}
	return nil
}
