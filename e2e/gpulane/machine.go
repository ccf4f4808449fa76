// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"golang.org/x/sys/unix"
)

// Machine is what a run found around the GPUs. Paths are as the host has them; empty for what is not there.
type Machine struct {
	System string `json:"system"`
	Kernel string `json:"kernel"`
	Cgroup string `json:"cgroup"`
	Root   bool   `json:"root"`
	// Driver is the kernel's part of the driver, in its own words.
	Driver     string `json:"driver,omitempty"`
	NVML       string `json:"nvml,omitempty"`
	CUDA       string `json:"cuda,omitempty"`
	SMI        string `json:"nvidiaSMI,omitempty"`
	MPSControl string `json:"mpsControl,omitempty"`
	MPSServer  string `json:"mpsServer,omitempty"`
	// Stray means that NVML lies where a node does not have it: Cleave finds it only by --nvml-library.
	Stray bool `json:"stray,omitempty"`
}

// programDirs are where drivers put programs, as pkg/driver/mps/supervisor looks for them.
var programDirs = []string{
	"/usr/local/nvidia/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
}

// strayDirs are where platforms mount a driver into containers, alongside what LD_LIBRARY_PATH names.
var strayDirs = []string{"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"}

// look finds what there is.
func look(root string) *Machine {
	m := &Machine{System: osRelease(), Kernel: kernel(), Cgroup: cgroup("/sys/fs/cgroup"), Root: os.Geteuid() == 0}
	if version, err := os.ReadFile(filepath.Join(procfs(root), "driver/nvidia/version")); err == nil {
		first, _, _ := strings.Cut(string(version), "\n")
		m.Driver = strings.Join(strings.Fields(strings.TrimPrefix(first, "NVRM version:")), " ")
	}
	m.NVML, m.Stray = findLibrary(root, "libnvidia-ml.so.1")
	m.CUDA, _ = findLibrary(root, "libcuda.so.1")
	for _, p := range []struct {
		path *string
		name string
	}{{&m.SMI, "nvidia-smi"}, {&m.MPSControl, "nvidia-cuda-mps-control"}, {&m.MPSServer, "nvidia-cuda-mps-server"}} {
		*p.path = findProgram(root, p.name)
	}
	return m
}

// describe says it in a line.
func (m *Machine) describe() string {
	orNone := func(s string) string {
		if s == "" {
			return "none"
		}
		return s
	}
	return fmt.Sprintf("%s, kernel %s, %s, driver: %s, NVML: %s, CUDA: %s, nvidia-smi: %s, MPS: %s", m.System, m.Kernel, m.Cgroup,
		orNone(m.Driver), orNone(m.NVML), orNone(m.CUDA), orNone(m.SMI), orNone(m.MPSControl))
}

// findLibrary looks as Cleave looks, and then, on a machine whose own driver it is, where its loader would.
func findLibrary(root, name string) (path string, stray bool) {
	found, err := lookup.NewLibraryLocator(lookup.WithRoot(root), lookup.WithLogger(silent{})).Locate(name)
	if err == nil && len(found) > 0 {
		return filepath.Clean(found[0]), false
	}
	if root != "/" {
		return "", false
	}
	for _, dir := range append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), strayDirs...) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil && filepath.IsAbs(path) {
			return path, true
		}
	}
	return "", false
}

func findProgram(root, name string) string {
	for _, dir := range programDirs {
		path := filepath.Join(root, dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// procfs is the /proc that describes the driver: a simulated node has one of its own.
func procfs(root string) string { return under(root, "/proc", "driver/nvidia") }

// sysfs is the /sys that describes the GPUs.
func sysfs(root string) string { return under(root, "/sys", "bus/pci/devices") }

// under prefers a file system of the driver root to the machine's own.
func under(root, dir, sign string) string {
	if _, err := os.Stat(filepath.Join(root, dir, sign)); err == nil {
		return filepath.Join(root, dir)
	}
	return dir
}

func osRelease() string {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "unknown system"
	}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return "unknown system"
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return string(bytes.TrimRight(u.Release[:], "\x00")) + " " + string(bytes.TrimRight(u.Machine[:], "\x00"))
}

// cgroup says which version is mounted.
func cgroup(dir string) string {
	var s unix.Statfs_t
	switch err := unix.Statfs(dir, &s); {
	case errors.Is(err, unix.ENOENT):
		return "no cgroups"
	case err != nil:
		return "cgroups unknown"
	case s.Type == unix.CGROUP2_SUPER_MAGIC:
		return "cgroup v2"
	default:
		return "cgroup v1"
	}
}

// silent passes over what the search for files says on its way.
type silent struct{}

func (silent) Debugf(string, ...any)   {}
func (silent) Infof(string, ...any)    {}
func (silent) Warningf(string, ...any) {}
func (silent) Errorf(string, ...any)   {}
func (silent) Tracef(string, ...any)   {}
