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
	// "gpu-0000-1b-00-0-mig-9-4" (gpu.Place.DeviceName), whatever the share's is.
	Device string
	UUID   string         // of the GPU, "GPU-…", or of the partition, "MIG-…"
	PCI    gpu.PCIAddress // of the GPU
	// Settings count when they start a daemon. One that runs keeps its own until its last share is gone.
	Settings Settings
	// Owner is the DRA driver name of the plugin that prepared the claim: plugins of several names share one supervisor.
	Owner string
}

// Subject is what a server is of, for people: "GPU gpu-0000-1b-00-0".
func Subject(device string) string {
	if _, _, ok := gpu.ParsePartitionName(device); ok {
		return "partition " + device
	}
	return "GPU " + device
}

// Settings are what a GPU's daemon is started with.
type Settings struct {
	// SharedMemory is the size of the /dev/shm that the daemon and its clients share, in bytes; above zero.
	SharedMemory int64 `json:"sharedMemory"`
	// ActiveThreadPercentage is the part of the multiprocessors that a client has if it does not say; 0 for all.
	ActiveThreadPercentage int `json:"activeThreadPercentage,omitempty"`
	// PinnedMemory is the device memory in bytes that a client has if it does not say, rounded down to a MiB; 0 for no limit.
	PinnedMemory int64 `json:"pinnedMemory,omitempty"`
}

// Endpoint is where a container finds its MPS server: mount PipeDir, read-only, at CUDA_MPS_PIPE_DIRECTORY and ShmDir at
// /dev/shm.
type Endpoint struct {
	// PipeDir holds what a client needs, and nothing of what controls the daemon.
	PipeDir string
	LogDir  string
	ShmDir  string
	// Generation grows with every daemon that is started for the GPU or partition: clients of an earlier one have lost their server.
	Generation uint64
}

// EventKind says what happened to a daemon.
type EventKind string

// The kinds of events.
const (
	// DaemonLost: it ended though claims use it; their running clients have lost their server.
	DaemonLost EventKind = "DaemonLost"
	// DaemonRestarted: a new one serves the same claims. Containers must restart their processes to use it.
	DaemonRestarted EventKind = "DaemonRestarted"
	// DaemonFailed: it could not be started again. The next Ensure for the GPU tries anew.
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

// State is what a GPU's daemon does.
type State string

// The states of a GPU whose daemon runs, or should.
const (
	// Starting: for the first time or again.
	Starting State = "starting"
	// Running: and claims use it.
	Running State = "running"
	// Stopping: no claim uses it, and something of it is left that could not be undone yet.
	Stopping State = "stopping"
	// Failed: it could not be started again; the supervisor keeps trying, slowly.
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
