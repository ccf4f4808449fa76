// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Paths under a root.
const (
	libraryDir  = "usr/lib/x86_64-linux-gnu"
	binaryDir   = "usr/bin"
	firmwareDir = "lib/firmware/nvidia"
	stashedProc = stateDir + "/proc-driver-nvidia"
)

// WithoutDeviceNodes omits the device files, which only root may create.
func WithoutDeviceNodes() Option { return func(o *options) { o.noDeviceNodes = true } }

// WithLibrary installs the file as libnvidia-ml.so.1; without it the root has none.
func WithLibrary(path string) Option { return func(o *options) { o.library = path } }

// WithExecutable installs the file as nvidia-smi and as the programs of MPS; it must behave according to its name.
func WithExecutable(path string) Option { return func(o *options) { o.executable = path } }

// WithForce replaces an existing node.
func WithForce() Option { return func(o *options) { o.force = true } }

// ErrExists means that there is already a simulated node under the root.
var ErrExists = errors.New("a simulated node is there already")

// Create creates a node under root, as a driver root: libraries, programs, device files, and stand-ins for the kernel's /proc and
// /sys. The state is written last, so that a node is either complete or absent.
func Create(root, model string, opts ...Option) (*Node, error) {
	o := newOptions(opts)
	s, err := newSpec(model, o)
	if err != nil {
		return nil, err
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("create simulated node: %w", err)
	}
	if err := clearRoot(root, o.force); err != nil {
		return nil, err
	}
	steps := []func(string, *spec, *options) error{createRoot, createLibraries, createPrograms, createDriverPrograms, createTree,
		createDeviceNodes, createState}
	for _, step := range steps {
		if err := step(root, s, o); err != nil {
			return nil, fmt.Errorf("create simulated node under %s: %w", root, err)
		}
	}
	return Open(root, opts...)
}

// clearRoot makes sure that the root is empty: it removes an earlier node if allowed, but no other files.
func clearRoot(root string, force bool) error {
	if filepath.Dir(root) == root {
		return fmt.Errorf("create simulated node under %s: that directory cannot contain a node", root)
	}
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a node under %s: %w", root, err)
	}
	if _, err := os.Stat(filepath.Join(root, stateDir)); err != nil {
		return fmt.Errorf("create simulated node under %s: the directory holds other files: %w", root, fs.ErrExist)
	}
	// A partly created node has no node.json, and is not in use.
	if _, err := os.Stat(filepath.Join(root, stateDir, "node.json")); err == nil && !force {
		return fmt.Errorf("create simulated node under %s: %w", root, ErrExists)
	}
	return Remove(root)
}

// created are the directories of a node under a root; the one that identifies a node comes last.
var created = []string{libraryDir, binaryDir, flatLibraryDir, flatBinaryDir, "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", firmwareDir,
	"proc", "sys", "dev", stateDir}

// Remove removes the node under root, and nothing else there.
func Remove(root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return fmt.Errorf("remove simulated node: %w", err)
	}
	if filepath.Dir(root) == root {
		return fmt.Errorf("remove simulated node under %s: there cannot be one", root)
	}
	if _, err := os.Stat(filepath.Join(root, stateDir)); err != nil {
		return fmt.Errorf("remove simulated node: %w", err)
	}
	if err := removeDevRoot(root); err != nil {
		return fmt.Errorf("remove simulated node: %w", err)
	}
	for _, dir := range created {
		err := os.RemoveAll(filepath.Join(root, dir))
		if errors.Is(err, syscall.ENOTEMPTY) { // a recorder has recreated its file meanwhile
			err = os.RemoveAll(filepath.Join(root, dir))
		}
		if err != nil {
			return fmt.Errorf("remove simulated node: %w", err)
		}
		for parent := filepath.Dir(dir); parent != "."; parent = filepath.Dir(parent) {
			if err := os.Remove(filepath.Join(root, parent)); err != nil {
				break // it is not empty, or gone
			}
		}
	}
	return nil
}

// stubLibraries are the driver libraries for containers, besides libnvidia-ml, and the extent of their SONAME.
var stubLibraries = []string{
	"libcuda.so.1",
	"libcudadebugger.so.1",
	"libnvidia-allocator.so.1",
	"libnvidia-cfg.so.1",
	"libnvidia-gpucomp.so",
	"libnvidia-nvvm.so.4",
	"libnvidia-opencl.so.1",
	"libnvidia-pkcs11-openssl3.so",
	"libnvidia-ptxjitcompiler.so.1",
}

// makeDirectory creates a directory and its parents, readable by all, as those of drivers and kernels.
func makeDirectory(path string) error {
	return os.MkdirAll(path, 0o755) //nolint:gosec // nvidia-smi works for every user
}

// createRoot creates the directory that identifies a node, before anything else.
func createRoot(root string, _ *spec, _ *options) error {
	return makeDirectory(filepath.Join(root, asideDir))
}

// createLibraries installs the libraries as a driver does: lib.so.<driver version>, lib.so.1 as a link to it, and
// lib.so as a link to that.
func createLibraries(root string, s *spec, o *options) error {
	dir := filepath.Join(root, o.libraryDir())
	if err := makeDirectory(dir); err != nil {
		return err
	}
	for _, soname := range stubLibraries {
		if err := installLibrary(dir, soname, s.DriverVersion, stubLibrary(soname)); err != nil {
			return err
		}
	}
	description, err := s.describe()
	if err != nil {
		return err
	}
	if err := installLibrary(dir, describingLibrary, s.DriverVersion, description); err != nil {
		return err
	}
	if o.library == "" {
		return nil
	}
	data, err := os.ReadFile(o.library)
	if err != nil {
		return fmt.Errorf("install libnvidia-ml.so.1: %w", err)
	}
	return installLibrary(dir, "libnvidia-ml.so.1", s.DriverVersion, data)
}

// installLibrary writes one library and its links.
func installLibrary(dir, soname, version string, data []byte) error {
	base, _, _ := strings.Cut(soname, ".so")
	file := base + ".so." + version
	if err := writeTree(dir, map[string]treeFile{file: {data: data}}, 0o755); err != nil {
		return err
	}
	links := [][2]string{{soname, file}}
	if soname != base+".so" {
		links = append(links, [2]string{base + ".so", soname})
	}
	for _, l := range links {
		if err := os.Symlink(l[1], filepath.Join(dir, l[0])); err != nil {
			return err
		}
	}
	return nil
}

// programs are the names of the file of WithExecutable. Without it, all but the first are placeholders for containers.
var programs = []string{"nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"}

// placeholder replaces a missing program.
const placeholder = `#!/bin/sh
echo "$0: simulated node: made without this program" >&2
exit 1
`

// createPrograms installs the programs under usr/bin, and the firmware for containers.
func createPrograms(root string, s *spec, o *options) error {
	dir := filepath.Join(root, o.binaryDir())
	if o.executable == "" {
		files := map[string]treeFile{}
		for _, name := range programs[1:] {
			addFile(files, name, placeholder)
		}
		if err := writeTree(dir, files, 0o755); err != nil {
			return err
		}
	} else if err := installProgram(dir, o.executable); err != nil {
		return fmt.Errorf("install programs: %w", err)
	}
	firmware := map[string]treeFile{}
	for i := range s.Boards {
		name := filepath.Join(firmwareDir, s.DriverVersion, s.Boards[i].GSPFirmware)
		addFile(firmware, name, "simulated firmware\n")
	}
	return writeTree(root, firmware, 0o644)
}

// installProgram installs one file under all names.
func installProgram(dir, executable string) error {
	data, err := os.ReadFile(executable)
	if err != nil {
		return err
	}
	if err := writeTree(dir, map[string]treeFile{programs[0]: {data: data}}, 0o755); err != nil {
		return err
	}
	for _, name := range programs[1:] {
		if err := os.Link(filepath.Join(dir, programs[0]), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// createTree writes /proc and /sys.
func createTree(root string, s *spec, o *options) error {
	proc := s.procfs()
	if o.noControlNodes {
		withoutUVM(proc)
	}
	if err := writeTree(root, proc, 0o444); err != nil {
		return err
	}
	for i := range s.GPUs {
		if s.Boards[s.GPUs[i].Board].MIG == nil {
			continue
		}
		if err := makeDirectory(filepath.Join(root, capabilityDir(s.GPUs[i].Minor))); err != nil {
			return err
		}
	}
	return writeTree(filepath.Join(root, "sys"), s.sysfs(), 0o444)
}

// writeTree writes files and links under a directory.
func writeTree(dir string, files map[string]treeFile, mode fs.FileMode) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, name)
		if err := makeDirectory(filepath.Dir(file)); err != nil {
			return err
		}
		var err error
		if f := files[name]; f.target != "" {
			err = os.Symlink(f.target, file)
		} else {
			err = os.WriteFile(file, f.data, mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// deviceNode is a character device.
type deviceNode struct {
	name         string
	major, minor int
}

// deviceNodes lists the device files of the node.
func (s *spec) deviceNodes() []deviceNode {
	nodes := []deviceNode{
		{"dev/nvidiactl", majorNVIDIA, minorCtl},
		{"dev/nvidia-modeset", majorNVIDIA, minorModeset},
		{"dev/nvidia-uvm", majorUVM, 0},
		{"dev/nvidia-uvm-tools", majorUVM, 1},
		{"dev/nvidia-caps/nvidia-cap1", majorCaps, capConfig},
		{"dev/nvidia-caps/nvidia-cap2", majorCaps, capMonitor},
	}
	for i := range s.GPUs {
		nodes = append(nodes, deviceNode{fmt.Sprintf("dev/nvidia%d", s.GPUs[i].Minor), majorNVIDIA, s.GPUs[i].Minor})
		nodes = append(nodes, drmNodes(i)...)
	}
	for i := range s.NVSwitches {
		nodes = append(nodes, deviceNode{fmt.Sprintf("dev/nvidia-nvswitch%d", i), majorNVSwitch, i})
	}
	return nodes
}

// createDeviceNodes creates the device files. No driver is behind them.
func createDeviceNodes(root string, s *spec, o *options) error {
	if o.noDeviceNodes {
		return nil
	}
	nodes := s.deviceNodes()
	if s.DevRoot == "" {
		nodes = append(nodes, deviceNode{"dev/null", 1, 3}) // also needed by programs in the root
	}
	if o.noControlNodes {
		nodes = slices.DeleteFunc(nodes, func(n deviceNode) bool { return slices.Contains(controlNodes, n.name) })
	}
	for _, n := range nodes {
		file := filepath.Join(s.devRoot(root), n.name)
		if err := makeDirectory(filepath.Dir(file)); err != nil {
			return err
		}
		err := makeNode(file, n.major, n.minor)
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("make device file %s: %w: run as root, or leave device files out (--no-device-nodes)", n.name, err)
		}
		if err != nil {
			return fmt.Errorf("make device file %s: %w", n.name, err)
		}
	}
	return nil
}

// makeNode creates a character device accessible to its owner.
func makeNode(path string, major, minor int) error {
	dev := (major&0xfff)<<8 | minor&0xff | (minor&^0xff)<<12
	if err := syscall.Mknod(path, syscall.S_IFCHR|0o660, dev); err != nil {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

// createState writes the state of a node that has just booted.
func createState(root string, s *spec, _ *options) error {
	dir := filepath.Join(root, stateDir)
	if err := makeDirectory(dir); err != nil {
		return err
	}
	state := &nodeState{Boots: 1, BootID: bootID(s, 1)}
	if err := writeBootID(root, state.BootID); err != nil {
		return err
	}
	for i := range s.GPUs {
		if err := writeJSON(gpuFile(dir, i), &gpuState{}); err != nil {
			return err
		}
	}
	if err := writeJSON(filepath.Join(dir, "state.json"), state); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "node.json"), s)
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	_, err = replaceFile(path, data, fileID{})
	return err
}

// writeBootID writes the stand-in for the kernel's boot id.
func writeBootID(root, id string) error {
	return writeTree(root, map[string]treeFile{"proc/sys/kernel/random/boot_id": {data: []byte(id + "\n")}}, 0o644)
}
