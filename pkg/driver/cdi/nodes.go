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

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Numbers of the driver's device nodes. The major of GPUs is fixed; the kernel chooses that of nvidia-uvm at each load of
// the module (nvidia-modprobe-utils.c, NV_MAJOR_DEVICE_NUMBER and nvidia_uvm_mknod).
const (
	majorNVIDIA  = 195
	minorControl = 255
	uvmModule    = "nvidia-uvm"
)

// Device nodes that containers need in addition to those of their GPUs. Without nvidiactl and nvidia-uvm no CUDA program
// starts: GKE's device plugin waits for these two (container-engine-accelerators, CheckDevicePaths). Profilers use the
// tools node, graphics the modeset node; both are optional, as in NVIDIA's toolkit (nvcdi, controlDeviceNodeDiscoverer).
const (
	controlNode  = "/dev/nvidiactl"
	uvmNode      = "/dev/nvidia-uvm"
	uvmToolsNode = "/dev/nvidia-uvm-tools"
	modesetNode  = "/dev/nvidia-modeset"
)

// anyMajor is the major of a node whose required major is unknown.
const anyMajor = -1

// deviceNode is a required character device.
type deviceNode struct {
	path         string // on the node and in the container
	major, minor int64
}

// mandatoryNodes are the device nodes that every container needs. If the kernel lists the driver's modules but not
// nvidia-uvm, that module is not loaded, and any existing node is stale.
func mandatoryNodes(majors map[string]int64) ([]deviceNode, error) {
	nodes := []deviceNode{{controlNode, majorNVIDIA, minorControl}}
	major, loaded := majors[uvmModule]
	switch {
	case loaded:
	case len(majors) == 0:
		major = anyMajor
	default:
		return nodes, fmt.Errorf("%s is stale: /proc/devices does not list %s: load that module", uvmNode, uvmModule)
	}
	return append(nodes, deviceNode{uvmNode, major, 0}), nil
}

func gpuNode(minor int) deviceNode {
	return deviceNode{"/dev/nvidia" + strconv.Itoa(minor), majorNVIDIA, int64(minor)}
}

// errNode is wrapped by the errors about a device node.
var errNode = errors.New("device node")

// check fails unless the node exists below a root with the right numbers.
func (n deviceNode) check(root string) error {
	info, err := os.Lstat(filepath.Join(root, n.path))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w %s is missing", errNode, n.path)
	}
	if err != nil {
		return fmt.Errorf("%w %s cannot be read: %w", errNode, n.path, err)
	}
	major, minor, ok := numbers(info)
	if !ok {
		return fmt.Errorf("%w %s is not a character device", errNode, n.path)
	}
	if minor != n.minor || n.major != anyMajor && major != n.major {
		want := strconv.FormatInt(n.major, 10)
		if n.major == anyMajor {
			want = "?"
		}
		return fmt.Errorf("%w %s has the numbers %d:%d and should have %s:%d: it is left over from another driver",
			errNode, n.path, major, minor, want, n.minor)
	}
	return nil
}

// numbers returns the major and minor number of a character device.
func numbers(info fs.FileInfo) (major, minor int64, ok bool) {
	stat, isUnix := info.Sys().(*syscall.Stat_t)
	if info.Mode()&fs.ModeCharDevice == 0 || !isUnix {
		return 0, 0, false
	}
	return int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev)), true
}

// majors reads the major numbers of the driver's modules, such as nvidia-uvm and nvidia-caps. It is empty if the kernel
// lists none of them, as in some sandboxes.
func majors(procfs fs.FS) map[string]int64 {
	found := map[string]int64{}
	data, err := fs.ReadFile(procfs, "devices")
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

// drmNodes lists a GPU's device nodes below /dev/dri according to /sys, ordered by name.
func drmNodes(sysfs fs.FS, g *gpu.GPU) []string {
	if sysfs == nil {
		return nil
	}
	entries, err := fs.ReadDir(sysfs, path.Join("bus/pci/devices", g.PCI.String(), "drm"))
	if err != nil {
		return nil // the driver's DRM module is not loaded
	}
	var nodes []string
	for _, e := range entries {
		if isDRMNode(e.Name()) {
			nodes = append(nodes, "/dev/dri/"+e.Name())
		}
	}
	return nodes
}

// isDRMNode reports whether a name is that of a DRM device, such as "card0" or "renderD128".
func isDRMNode(name string) bool {
	for _, prefix := range []string{"card", "renderD"} {
		if number, found := strings.CutPrefix(name, prefix); found && number != "" && strings.Trim(number, "0123456789") == "" {
			return true
		}
	}
	return false
}
