// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Host is the machine as the supervisor uses it.
type Host struct {
	Hardware Hardware
	Daemons  Daemons
	Mounts   Mounts
	Files    Files
	// Disk holds what is stored.
	Disk store.FileSystem
}

// Hardware opens the driver briefly: while it is open, the driver cannot be reloaded.
type Hardware interface {
	Open(ctx context.Context) (GPUs, error)
}

// GPUs is the open driver. Errors wrap the sentinels of pkg/domain/gpu.
type GPUs interface {
	// ComputeMode fails with gpu.ErrInMIGMode in MIG mode, and with gpu.ErrNotSupported on GPUs without compute modes. Both methods
	// fail if the GPU at the address has another UUID.
	ComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string) (int, error)
	SetComputeMode(ctx context.Context, pci gpu.PCIAddress, uuid string, mode int) error
	Close() error
}

// Daemons starts, finds and asks MPS control daemons.
type Daemons interface {
	// Root finds the root of the driver for a Daemon.
	Root(ctx context.Context) string
	// Start creates the process, passes its ID to record, and only then lets it become the daemon. If record fails, or this process
	// dies before that, the new process exits.
	Start(ctx context.Context, d Daemon, record func(ProcessID) error) (Process, error)
	// Adopt finds a daemon started by an earlier supervisor; the error wraps errGone if it has ended.
	Adopt(id ProcessID) (Process, error)
	// Ask runs the control program as a client and returns what it prints.
	Ask(ctx context.Context, d Daemon, commands ...string) (string, error)
	// Serves reports whether a server of the daemon runs: it keeps the driver in use, so the driver was not reloaded since.
	Serves(ctx context.Context, d Daemon, daemon ProcessID) (bool, error)
	// Sweep kills every MPS process that uses the daemon's directories, and undoes the rest of Start.
	Sweep(ctx context.Context, d Daemon) error
}

// errGone is wrapped by errors about a process that has ended.
var errGone = errors.New("the process has ended")

// Process is a daemon that was started or adopted.
type Process interface {
	ID() ProcessID
	// Done is closed when it has ended; How then describes the end.
	Done() <-chan struct{}
	How() string
	Terminate() error
	Kill() error
	// Forget stops watching it.
	Forget()
}

// ProcessID identifies a process, as PIDs are reused.
type ProcessID struct {
	PID int `json:"pid"`
	// Start is when it started, in clock ticks since boot (proc_pid_stat(5), starttime).
	Start uint64 `json:"start"`
}

// Mounts are the in-memory file systems of daemons and their clients.
type Mounts interface {
	// Mount mounts a tmpfs on a directory, unless there is one already.
	Mount(ctx context.Context, t tmpfs) error
	// Unmount removes all mounts on a directory, which may be missing.
	Unmount(dir string) error
}

// Files are the directories of daemons.
type Files interface {
	// MakeDirs creates the directories of a daemon.
	MakeDirs(p paths) error
	// Clear empties the mounted pipe directory, and bounds the logs.
	Clear(p paths) error
	// ShowClients links a running daemon's client pipes into the directory that containers mount.
	ShowClients(p paths) error
	// RemoveDirs deletes them.
	RemoveDirs(p paths) error
}

// Daemon identifies a daemon.
type Daemon struct {
	GPU  string // "gpu-0000-1b-00-0", or a partition's "gpu-0000-1b-00-0-mig-9-4"
	UUID string
	// Root is that of the driver when it was started or adopted; empty for neither.
	Root  string
	paths paths
}

// tmpfs is an in-memory file system: its mount point, its size in bytes, and the mode of its root.
type tmpfs struct {
	dir  string
	size int64
	mode uint32
}

// paths are the directories of one GPU.
type paths struct {
	// dir contains the others. pipe is the daemon's CUDA_MPS_PIPE_DIRECTORY. clients is on the same file system, and the only part
	// of it visible to containers.
	dir, pipe, clients, log, shm string
}

func pathsOf(base, device string) paths {
	dir := filepath.Join(base, device)
	return paths{
		dir: dir, pipe: filepath.Join(dir, "pipe"), clients: filepath.Join(dir, "pipe", "clients"),
		log: filepath.Join(dir, "log"), shm: filepath.Join(dir, "shm"),
	}
}

// mounts are the directories on which a tmpfs may be mounted.
func (p paths) mounts() []string { return []string{p.shm, p.pipe, p.log} }

// stateDir is the directory of records.
const stateDir = "state"
