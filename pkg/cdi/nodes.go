// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Numbers of the driver's device nodes: the major of GPUs is NVIDIA's own, that of nvidia-uvm is the kernel's choice at
// each load of the module (nvidia-modprobe-utils.c, NV_MAJOR_DEVICE_NUMBER and nvidia_uvm_mknod).
const (
	majorNVIDIA  = 195
	minorModeset = 254
	minorControl = 255
	uvmModule    = "nvidia-uvm"
)

// Device nodes that containers need of the driver beside those of their GPUs. Without nvidiactl and nvidia-uvm no CUDA
// program starts: GKE's device plugin waits for just these two (container-engine-accelerators, CheckDevicePaths). The
// tools' node serves profilers, that of modeset graphics; both are left out where they are missing, as NVIDIA's toolkit
// does (nvcdi, controlDeviceNodeDiscoverer).
const (
	controlNode  = "/dev/nvidiactl"
	uvmNode      = "/dev/nvidia-uvm"
	uvmToolsNode = "/dev/nvidia-uvm-tools"
	modesetNode  = "/dev/nvidia-modeset"
)

// anyMajor is the major of a node where nothing says what it has to be.
const anyMajor = -1

// deviceNode is a character device as it has to be.
type deviceNode struct {
	path         string // on the node and in the container
	major, minor int64
}

// mandatoryNodes are those that every container needs, with the numbers that they have to have. A kernel that lists its
// drivers but not nvidia-uvm has not loaded that module: whatever node there is leads nowhere.
func mandatoryNodes(majors map[string]int64) ([]deviceNode, error) {
	nodes := []deviceNode{{controlNode, majorNVIDIA, minorControl}}
	major, loaded := majors[uvmModule]
	switch {
	case loaded:
	case len(majors) == 0:
		major = anyMajor
	default:
		return nodes, fmt.Errorf("%s leads nowhere: /proc/devices does not list %s: load that module", uvmNode, uvmModule)
	}
	return append(nodes, deviceNode{uvmNode, major, 0}), nil
}

// gpuNode is the device node of a GPU.
func gpuNode(minor int) deviceNode {
	return deviceNode{"/dev/nvidia" + strconv.Itoa(minor), majorNVIDIA, int64(minor)}
}

// errNode says what is wrong with a device node.
var errNode = errors.New("device node")

// check looks whether a node is as it has to be below a root.
func (n deviceNode) check(root string) error {
	info, err := os.Lstat(filepath.Join(root, n.path))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w %s is missing", errNode, n.path)
	}
	if err != nil {
		return fmt.Errorf("%w %s cannot be looked at: %w", errNode, n.path, err)
	}
	major, minor, ok := numbers(info)
	if !ok {
		return fmt.Errorf("%w %s is no character device", errNode, n.path)
	}
	if minor != n.minor || n.major != anyMajor && major != n.major {
		want := strconv.FormatInt(n.major, 10)
		if n.major == anyMajor {
			want = "?"
		}
		return fmt.Errorf("%w %s has the numbers %d:%d and should have %s:%d: it is left over from another driver", errNode, n.path, major, minor, want, n.minor)
	}
	return nil
}

// numbers are those of a character device.
func numbers(info fs.FileInfo) (major, minor int64, ok bool) {
	stat, isUnix := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeCharDevice == 0 || !isUnix {
		return 0, 0, false
	}
	return int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev)), true
}

// majors reads which of the driver's modules the kernel has given which major: of nvidia-uvm, nvidia-caps and others. It is
// empty where the kernel lists none of them, as in some sandboxes.
func (s *Static) majors() map[string]int64 {
	found := map[string]int64{}
	data, err := fs.ReadFile(s.opts.Procfs, "devices")
	if err != nil {
		return found
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if line == "Block devices:\n" {
			break
		}
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "nvidia") {
			continue
		}
		if major, err := strconv.ParseInt(fields[0], 10, 32); err == nil {
			found[fields[1]] = major
		}
	}
	return found
}

// drmNodes lists the nodes of a GPU below /dev/dri, by /sys, in the order of their names.
func (s *Static) drmNodes(g *gpu.GPU) []string {
	if s.opts.Sysfs == nil {
		return nil
	}
	entries, err := fs.ReadDir(s.opts.Sysfs, path.Join("bus/pci/devices", g.PCI.String(), "drm"))
	if err != nil {
		return nil // the driver has no DRM part there
	}
	var nodes []string
	for _, e := range entries {
		if isDRMNode(e.Name()) {
			nodes = append(nodes, "/dev/dri/"+e.Name())
		}
	}
	return nodes
}

// isDRMNode reports whether a name is that of a DRM device, "card0" or "renderD128".
func isDRMNode(name string) bool {
	for _, prefix := range []string{"card", "renderD"} {
		if number, found := strings.CutPrefix(name, prefix); found && number != "" && strings.Trim(number, "0123456789") == "" {
			return true
		}
	}
	return false
}
