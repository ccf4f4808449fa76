// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// capability is a file below /proc, "driver/nvidia/capabilities/gpu0/mig/gi1/access", and the device node of what it grants.
type capability struct {
	file string
	node deviceNode
}

// capabilitiesOf are those of a partition on the GPU with a minor number: of its GPU instance and, where it has one, its compute instance.
func capabilitiesOf(procfs fs.FS, gpuMinor int, p *gpu.Partition) ([]capability, error) {
	majors := majors(procfs)
	major, found := majors["nvidia-caps"]
	if !found {
		major, found = majors["nvidia/nvidia-caps"]
	}
	if !found {
		return nil, errors.New("the major number of nvidia-caps is not in /proc/devices; is the nvidia module loaded?")
	}
	gi := path.Join("driver/nvidia/capabilities", "gpu"+strconv.Itoa(gpuMinor), "mig", "gi"+strconv.Itoa(p.GI))
	files := []string{path.Join(gi, "access")}
	if p.CI != nil {
		files = append(files, path.Join(gi, "ci"+strconv.Itoa(*p.CI), "access"))
	}
	var all []capability
	for _, file := range files {
		c, err := readCapability(procfs, file, major)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

// readCapability returns the capability of a file, whose nodes have that major.
func readCapability(procfs fs.FS, file string, major int64) (capability, error) {
	data, err := fs.ReadFile(procfs, file)
	if err != nil {
		return capability{}, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
			minor, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
			return capability{file, deviceNode{"/dev/nvidia-caps/nvidia-cap" + strconv.FormatInt(minor, 10), major, minor}}, err
		}
	}
	return capability{}, fmt.Errorf("%s has no DeviceFileMinor", file)
}

// CapabilityDevices are the numbers (makedev(3)) of the device nodes that a process opens to use a partition of a GPU; those of its
// compute instance are left out once that is gone. procfs is the node's /proc.
func CapabilityDevices(procfs fs.FS, g *gpu.GPU, p *gpu.Partition) ([]uint64, error) {
	all, err := capabilitiesOf(procfs, g.Minor, p)
	if len(all) == 0 {
		return nil, fmt.Errorf("find the capability nodes of a partition: %w", err)
	}
	var numbers []uint64
	for _, c := range all {
		numbers = append(numbers, unix.Mkdev(uint32(c.node.major), uint32(c.node.minor))) //nolint:gosec // both are of the kernel
	}
	return numbers, nil
}

// createCapabilityNodes creates the device nodes of partitions that are missing on the host. The kernel module creates none (nv-caps.c),
// and in a pod with a user namespace runc mounts the host's instead of creating its own (runc v1.5.1, libcontainer/rootfs_linux.go,
// createDeviceNode). Other pods do not need them, so a failure is only logged. A partition that is created again has the same nodes.
func (s *Static) createCapabilityNodes(ctx context.Context, all []capability) {
	root := s.opts.root().Devices()
	var missing []capability
	var wanted driverroot.Nodes
	for _, c := range all {
		if c.node.check(root.Here) != nil {
			missing = append(missing, c)
			wanted.Capabilities = append(wanted.Capabilities, c.file)
		}
	}
	if s.opts.CreateNodes == nil || len(missing) == 0 {
		return
	}
	err := s.opts.CreateNodes(ctx, wanted)
	for _, c := range missing {
		if why := c.node.check(root.Here); why != nil {
			klog.FromContext(ctx).Info("A partition cannot be used by pods with user namespaces (hostUsers: false)",
				"reason", fmt.Sprintf("%v: %s", why, remedy("-f "+path.Join("/proc", c.file), err)))
			continue
		}
		klog.FromContext(ctx).V(2).Info("Created a capability node", "node", c.node.path, "devRoot", root.Host)
	}
}
