// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// DefaultDir is where the supervisor keeps its socket, its state and the directories of its daemons.
const DefaultDir = "/run/cleave/mps"

// DefaultSocket is where the supervisor listens by default.
const DefaultSocket = DefaultDir + "/" + SocketName

// SocketName is the name of the supervisor's socket in its directory.
const SocketName = "supervisor.sock"

// Request asks that a claim may use the MPS server of a GPU or a partition.
type Request struct {
	Claim types.UID
	// Device is the name of the whole GPU, "gpu-0000-1b-00-0" (gpu.PCIAddress.DeviceName), or of the partition,
	// "gpu-0000-1b-00-0-mig-9-4" (gpu.Place.DeviceName), whatever the name of the share.
	Device string
	UUID   string         // of the GPU, "GPU-…", or of the partition, "MIG-…"
	PCI    gpu.PCIAddress // of the GPU
	// Settings apply when they start a daemon. A running one keeps its own until its last share is gone.
	Settings Settings
	// Owner is the DRA driver name of the plugin that prepared the claim: plugins of several names share one supervisor.
	Owner string
}

// Subject describes the device of a server for people: "GPU gpu-0000-1b-00-0".
func Subject(device string) string {
	if _, _, ok := gpu.ParsePartitionName(device); ok {
		return "partition " + device
	}
	return "GPU " + device
}

// Settings are the start parameters of a GPU's daemon.
type Settings struct {
	// SharedMemory is the size of the /dev/shm that the daemon and its clients share, in bytes; above zero.
	SharedMemory int64 `json:"sharedMemory"`
	// ActiveThreadPercentage is the default limit of a client's multiprocessors; 0 for all.
	ActiveThreadPercentage int `json:"activeThreadPercentage,omitempty"`
	// PinnedMemory is the default limit of a client's device memory in bytes, rounded down to a MiB; 0 for none.
	PinnedMemory int64 `json:"pinnedMemory,omitempty"`
}

// Endpoint is where a container finds its MPS server: mount PipeDir, read-only, at CUDA_MPS_PIPE_DIRECTORY and ShmDir at
// /dev/shm.
type Endpoint struct {
	// PipeDir contains the client pipes, but not those that control the daemon.
	PipeDir string
	LogDir  string
	ShmDir  string
}

// EventKind is a change of a daemon's state.
type EventKind string

// The kinds of events.
const (
	// DaemonLost: it ended while claims used it, or was ended as its server stayed in state FAULT; their running clients have lost
	// their server.
	DaemonLost EventKind = "DaemonLost"
	// DaemonRestarted: a new one serves the same claims. Containers must restart their processes to use it.
	DaemonRestarted EventKind = "DaemonRestarted"
	// DaemonFailed: it could not be restarted. The next Ensure for the GPU tries again.
	DaemonFailed EventKind = "DaemonFailed"
)

// Event reports what happened to the daemon of a GPU or partition while claims used it.
type Event struct {
	Device string // as in Request
	Kind   EventKind
	// Claims that used the daemon, sorted.
	Claims  []types.UID
	Message string // for people; names the cause
	Time    time.Time
}

// State is the state of a GPU's daemon.
type State string

// The states of a GPU whose daemon runs, or should.
const (
	// Starting: for the first time or again.
	Starting State = "starting"
	// Running: and claims use it.
	Running State = "running"
	// Stopping: no claim uses it, but its cleanup has not succeeded yet.
	Stopping State = "stopping"
	// Failed: it could not be restarted; the supervisor keeps trying, slowly.
	Failed State = "failed"
)

// Status is the state of all GPUs and partitions whose daemon runs, or should.
type Status struct {
	Version string      `json:"version"`
	GPUs    []GPUStatus `json:"gpus"` // in order of device name
}

// GPUStatus is one GPU or partition whose daemon runs, or should.
type GPUStatus struct {
	Device     string      `json:"device"`
	UUID       string      `json:"uuid"`
	State      State       `json:"state"`
	PID        int         `json:"pid,omitempty"` // of the daemon, 0 if none runs
	Generation uint64      `json:"generation"`
	Claims     []types.UID `json:"claims,omitempty"` // sorted
	// Owners are the DRA driver names of claims.
	Owners  map[types.UID]string `json:"owners,omitempty"`
	Message string               `json:"message,omitempty"`
}
