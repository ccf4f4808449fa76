// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// capability is a file below /proc, such as "driver/nvidia/capabilities/gpu0/mig/gi1/access", and its device node.
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
		numbers = append(numbers, unix.Mkdev(uint32(c.node.major), uint32(c.node.minor)))
	}
	return numbers, nil
}

// EnsureNodes creates missing device nodes of a claim's partitions on the host, as after their removal. Failures are only logged.
func (s *Static) EnsureNodes(ctx context.Context, r *records.Record) {
	var all []capability
	for _, d := range r.Partitions() {
		minor, err := s.gpuMinor(d.GPU)
		if err != nil {
			continue // the GPU is missing
		}
		some, _ := capabilitiesOf(s.opts.Procfs, minor, d.Partition)
		all = append(all, some...)
	}
	s.createCapabilityNodes(ctx, all)
}

const (
	// createTimeout bounds the wait for capability nodes: callers hold locks of GPUs.
	createTimeout = 3 * time.Second
	// createPause is the time after a failure before the next attempt.
	createPause = time.Minute
)

// createCapabilityNodes creates the device nodes of partitions that are missing on the host. The kernel module creates none
// (nv-caps.c), and in a pod with a user namespace runc mounts the host's instead of creating its own (runc v1.5.1,
// libcontainer/rootfs_linux.go, createDeviceNode). Other pods do not need them, so a failure is only logged. A recreated partition
// has the same nodes.
func (s *Static) createCapabilityNodes(ctx context.Context, all []capability) {
	root := s.opts.root().Devices()
	missing := slices.DeleteFunc(slices.Clone(all), func(c capability) bool { return c.node.check(root.Here) == nil })
	if s.opts.CreateNodes == nil || len(missing) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	if !s.creating.begin(ctx) {
		return
	}
	var wanted driverroot.Nodes
	for _, c := range missing {
		wanted.Capabilities = append(wanted.Capabilities, c.file)
	}
	created := make(chan error, 1)
	go func() {
		defer s.creating.end()
		created <- s.opts.CreateNodes(ctx, wanted) // a process that hangs in the kernel does not end with ctx
	}()
	var err error
	select {
	case err = <-created:
	case <-ctx.Done():
		err = ctx.Err()
	}
	var failed error
	for _, c := range missing {
		if why := c.node.check(root.Here); why != nil {
			failed = why
			klog.FromContext(ctx).Info("A partition cannot be used by pods with user namespaces (hostUsers: false)",
				"reason", fmt.Sprintf("%v: %s", why, remedy("-f "+path.Join("/proc", c.file), err)))
			continue
		}
		klog.FromContext(ctx).V(2).Info("Created a capability node", "node", c.node.path, "devRoot", root.Host)
	}
	s.creating.note(failed)
}

// attempts allows one attempt at a time, and none for a while after a failed one.
type attempts struct {
	turn chan struct{} // has a value during an attempt

	mu     sync.Mutex
	failed time.Time
}

func newAttempts() attempts { return attempts{turn: make(chan struct{}, 1)} }

// begin waits until an attempt may be made, and reports whether it may before ctx ends.
func (a *attempts) begin(ctx context.Context) bool {
	a.mu.Lock()
	wait := !a.failed.IsZero() && time.Since(a.failed) < createPause
	a.mu.Unlock()
	if wait {
		return false
	}
	select {
	case a.turn <- struct{}{}:
		return true
	case <-ctx.Done(): // the previous one still hangs
		a.note(ctx.Err())
		return false
	}
}

func (a *attempts) end() { <-a.turn }

// note remembers the outcome of an attempt, or its timeout.
func (a *attempts) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = time.Time{}
	if err != nil {
		a.failed = time.Now()
	}
}
