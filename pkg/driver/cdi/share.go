// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"strconv"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Where a container finds the pipes and shared memory of its MPS server. The pipe directory is CUDA's default, so that a
// program that clears its environment still finds the server.
const (
	containerPipes        = "/tmp/nvidia-mps"
	containerSharedMemory = "/dev/shm"
)

// mebibyte is the unit of memory in the environment of containers.
const mebibyte = 1 << 20

// share adds the container edits of one share: its amounts, and what enforces them.
func (e claimEditor) share(edits *specs.ContainerEdits, d *records.Device) error {
	share := d.Share
	set := func(name string, value int64) {
		edits.Env = append(edits.Env, name+"="+strconv.FormatInt(value, 10))
	}
	if !share.Exclusive { // an exclusive share has no amounts
		set("CLEAVE_SHARES", share.Shares)
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
			return fmt.Errorf("share %s of %s has no MPS server", share.ID, d.Device)
		}
		if share.MPS.ThreadPercentage > 0 {
			set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share.MPS.ThreadPercentage)
		}
		if share.MPS.Memory > 0 {
			// Its server sees only this GPU or partition, so the device ordinal is 0.
			edits.Env = append(edits.Env, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", share.MPS.Memory/mebibyte))
		}
		if share.MPS.BelowNormal {
			set("CUDA_MPS_CLIENT_PRIORITY", 1)
		}
		if share.MPS.ManyClients {
			set("CUDA_DEVICE_MAX_CONNECTIONS", 2)
		}
		edits.Env = append(edits.Env, "CUDA_MPS_PIPE_DIRECTORY="+containerPipes)
		// A read-only mount lets a client connect to the socket and write to the pipes, but not change files and
		// directories (path_resolution(7), mount(2) MS_RDONLY): no container can replace the socket or fill the directory.
		edits.Mounts = []*specs.Mount{bind(share.MPS.PipeDir, containerPipes, "ro"), bind(share.MPS.ShmDir, containerSharedMemory, "rw")}
	case share.CgroupMemory:
		edits.Hooks = []*specs.Hook{e.memoryLimit(d, share.Memory)}
	}
	return nil
}

// bind mounts a host directory "ro" or "rw".
func bind(from, to, access string) *specs.Mount {
	return &specs.Mount{HostPath: from, ContainerPath: to, Type: "bind",
		Options: []string{"rbind", access, "nosuid", "nodev", "noexec", "rprivate"}}
}

// memoryLimit is the hook that makes the driver limit the GPU memory of a container's cgroup.
func (e claimEditor) memoryLimit(d *records.Device, memory int64) *specs.Hook {
	pci, _ := gpu.ParseDeviceName(d.GPU) // as of every GPU on record
	return &specs.Hook{
		HookName: "createRuntime",
		Path:     e.MemoryHookPath,
		Args: []string{"cleave-memory-limit", "--driver-root=" + e.DriverRoot, "--gpu=" + d.UUID,
			"--pci=" + pci.String(), "--limit=" + strconv.FormatInt(memory, 10)},
	}
}
