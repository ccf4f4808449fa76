// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"strconv"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Where a container finds what the clients of an MPS server share. The pipes are where CUDA looks for them when nothing
// tells it, so that a program that clears its environment does not miss the server.
const (
	containerPipes        = "/tmp/nvidia-mps"
	containerSharedMemory = "/dev/shm"
)

// mebibyte is the unit in which drivers and users take amounts of memory.
const mebibyte = 1 << 20

// shareDevice is the CDI device of one share: its numbers, and what holds it to them.
func (s *Static) shareDevice(d *records.Device) (*specs.Device, error) {
	share := d.Share
	edits := specs.ContainerEdits{Env: []string{"CLEAVE_SHARES=" + strconv.FormatInt(share.Shares, 10)}}
	if share.Exclusive {
		edits.Env = nil // nothing is counted
	}
	set := func(name string, value int64) {
		edits.Env = append(edits.Env, name+"="+strconv.FormatInt(value, 10))
	}
	if share.Memory > 0 {
		set("CLEAVE_MEMORY_MIB", share.Memory/mebibyte)
	}
	if share.Cores > 0 {
		set("CLEAVE_CORES_PERCENT", share.Cores)
	}
	switch {
	case share.Kind == gpu.MPS:
		if share.MPS == nil || share.MPS.PipeDir == "" {
			return nil, fmt.Errorf("share %s of %s has no MPS server", share.ID, d.Device)
		}
		if share.MPS.ThreadPercentage > 0 {
			set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share.MPS.ThreadPercentage)
		}
		if share.MPS.Memory > 0 {
			// The server of the GPU has no other, so its number there is 0.
			edits.Env = append(edits.Env, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", share.MPS.Memory/mebibyte))
		}
		if share.MPS.BelowNormal {
			set("CUDA_MPS_CLIENT_PRIORITY", 1)
		}
		if share.MPS.ManyClients {
			set("CUDA_DEVICE_MAX_CONNECTIONS", 2)
		}
		edits.Env = append(edits.Env, "CUDA_MPS_PIPE_DIRECTORY="+containerPipes)
		// A client connects to a socket and writes to a pipe, which a read-only mount allows: it is files and
		// directories that cannot be changed (path_resolution(7), mount(2) MS_RDONLY). So no container can take the
		// socket from the others, or fill the directory.
		edits.Mounts = []*specs.Mount{bind(share.MPS.PipeDir, containerPipes, "ro"), bind(share.MPS.ShmDir, containerSharedMemory, "rw")}
	case share.CgroupMemory:
		edits.Hooks = []*specs.Hook{s.memoryLimit(d.UUID, share.Memory)}
	}
	return &specs.Device{ContainerEdits: edits}, nil
}

// bind is a mount of a host's directory, "ro" or "rw".
func bind(from, to, access string) *specs.Mount {
	return &specs.Mount{HostPath: from, ContainerPath: to, Type: "bind", Options: []string{"rbind", access, "nosuid", "nodev", "noexec", "rprivate"}}
}

// memoryLimit has the driver hold a container's cgroup to an amount of a GPU's memory, once the cgroup is there.
func (s *Static) memoryLimit(uuid string, memory int64) *specs.Hook {
	return &specs.Hook{
		HookName: "createRuntime",
		Path:     s.opts.MemoryHookPath,
		Args:     []string{"cleave-memory-limit", "--driver-root=" + s.opts.DriverRoot, "--gpu=" + uuid, "--limit=" + strconv.FormatInt(memory, 10)},
	}
}
