// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Host is what the supervisor asks of the machine.
type Host struct {
	Hardware Hardware
	Daemons  Daemons
	Mounts   Mounts
	Files    Files
	// Disk holds what is stored.
	Disk store.FileSystem
}

// Hardware opens the driver for a moment: one that stays open would keep the driver from being reloaded.
type Hardware interface {
	Open(ctx context.Context) (GPUs, error)
}

// GPUs is the open driver. Errors wrap the sentinels of pkg/domain/gpu.
type GPUs interface {
	// ComputeMode is gpu.ErrInMIGMode in MIG mode, gpu.ErrNotSupported where there are none. Both fail if the GPU at the address is not
	// the one with the UUID.
	ComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string) (int, error)
	SetComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string, mode int) error
	Close() error
}

// Daemons starts, finds and asks MPS control daemons.
type Daemons interface {
	// Start makes the process, hands its id to record and only then lets it become the daemon. Where record fails, or
	// this process dies before, it ends without.
	Start(ctx context.Context, d Daemon, record func(ProcessID) error) (Process, error)
	// Adopt finds a daemon that an earlier life of the supervisor started; the error wraps errGone if it has ended.
	Adopt(id ProcessID) (Process, error)
	// Ask runs the control program as a client and returns what it prints.
	Ask(ctx context.Context, d Daemon, commands ...string) (string, error)
	// Serves reports whether a server of the daemon runs: it holds the driver, so it has not outlived a reload of it.
	Serves(ctx context.Context, d Daemon, daemon ProcessID) (bool, error)
	// Sweep ends every process of MPS that belongs to the daemon's directories, and undoes what else Start did.
	Sweep(ctx context.Context, d Daemon) error
}

// errGone is wrapped where a process has ended.
var errGone = errors.New("the process has ended")

// Process is a daemon that was started or adopted.
type Process interface {
	ID() ProcessID
	// Done is closed when it has ended, and How then says how.
	Done() <-chan struct{}
	How() string
	Terminate() error
	Kill() error
	// Forget stops watching it.
	Forget()
}

// ProcessID identifies a process: process ids alone are reused.
type ProcessID struct {
	PID int `json:"pid"`
	// Start is when it started, in clock ticks since boot (proc_pid_stat(5), starttime).
	Start uint64 `json:"start"`
}

// Mounts are the file systems in memory of daemons and their clients.
type Mounts interface {
	// Mount puts a tmpfs on a directory, unless there is one already.
	Mount(ctx context.Context, t tmpfs) error
	// Unmount takes away all that is mounted on a directory, which may be missing.
	Unmount(dir string) error
}

// Files are the directories of daemons.
type Files interface {
	// MakeDirs makes the directories of a daemon.
	MakeDirs(p paths) error
	// Clear empties that of its pipes, once it is mounted, and bounds its logs.
	Clear(p paths) error
	// ShowClients puts what clients need of the pipes of a daemon that runs into the directory that containers mount.
	ShowClients(p paths) error
	// RemoveDirs deletes them.
	RemoveDirs(p paths) error
}

// Daemon identifies a daemon.
type Daemon struct {
	GPU   string // "gpu-0000-1b-00-0", or a partition's "gpu-0000-1b-00-0-mig-9-4"
	UUID  string
	paths paths
}

// tmpfs is a file system in memory: where it lies, its size in bytes, and the mode of its root.
type tmpfs struct {
	dir  string
	size int64
	mode uint32
}

// paths are the directories of one GPU.
type paths struct {
	// dir holds the others. pipe is the daemon's CUDA_MPS_PIPE_DIRECTORY. clients lies on the same file system and is all
	// of it that containers see.
	dir, pipe, clients, log, shm string
}

func pathsOf(base, device string) paths {
	dir := filepath.Join(base, device)
	return paths{
		dir: dir, pipe: filepath.Join(dir, "pipe"), clients: filepath.Join(dir, "pipe", "clients"),
		log: filepath.Join(dir, "log"), shm: filepath.Join(dir, "shm"),
	}
}

// mounts are the directories on which a tmpfs may lie.
func (p paths) mounts() []string { return []string{p.shm, p.pipe, p.log} }

// stateDir is the directory of records.
const stateDir = "state"
