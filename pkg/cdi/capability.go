// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driverroot"
)

// capability is a file below /proc, "driver/nvidia/capabilities/gpu0/mig/gi1/access", and the device node of what it grants.
type capability struct {
	file string
	node deviceNode
}

// findCapability returns the capability of a file, whose nodes have that major.
func findCapability(procfs fs.FS, file string, major int64) (capability, error) {
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
