// SPDX-License-Identifier: Apache-2.0

package history

import "time"

// Format is the version of the file; a reader refuses others.
const Format = 1

// Start is the first fact of every file.
type Start struct {
	Format int    `json:"format"`
	Node   string `json:"node,omitempty"`
	Driver string `json:"driver,omitempty"`
}

// Counters is a counter set as published: what there is of a GPU to be consumed.
type Counters struct {
	// Set is its name, and Values what it has of each counter.
	Set    string           `json:"set"`
	Values map[string]int64 `json:"values"`
}

// Device is a device as published, when it is first seen and when it changes.
type Device struct {
	Name string `json:"name"`
	// Set and Consumes are the counters that it consumes while it is allocated, however often. A device without Set is a unit
	// of its own.
	Set      string           `json:"set,omitempty"`
	Consumes map[string]int64 `json:"consumes,omitempty"`
	// Shared devices may be allocated many times, within Capacity.
	Shared   bool             `json:"shared,omitempty"`
	Capacity map[string]int64 `json:"capacity,omitempty"`
}

// Withdrawn is a device that is published no longer, by a pool that is complete. Published again, it is a Device.
type Withdrawn struct {
	Name string `json:"name"`
}

// ClaimState is how far a claim is at the API server.
type ClaimState string

// The states of claims.
const (
	ClaimAllocated ClaimState = "allocated"
	// ClaimFree claims exist and have no device of the driver on the node.
	ClaimFree    ClaimState = "free"
	ClaimDeleted ClaimState = "deleted"
)

// Claim is a claim as the API server has it from now on.
type Claim struct {
	UID       string      `json:"uid"`
	Namespace string      `json:"namespace,omitempty"`
	Name      string      `json:"name,omitempty"`
	State     ClaimState  `json:"state"`
	Devices   []Allocated `json:"devices,omitempty"`
	// Pods are the UIDs of those that it is reserved for: by themselves, or by their PodGroup once they are on the node.
	Pods []string `json:"pods,omitempty"`
	// Deleting claims are Terminating: few are, as those of pods that have ended are mostly free before they are deleted. Held are those
	// of them that a finalizer of others keeps, or that are reserved for something else than pods. Older histories have neither.
	Deleting bool `json:"deleting,omitempty"`
	Held     bool `json:"held,omitempty"`
}

// Allocated is a device that a claim was allocated.
type Allocated struct {
	Request string `json:"request,omitempty"`
	Device  string `json:"device"`
	// Admin access owns nothing.
	Admin bool `json:"admin,omitempty"`
	// Consumed is what the claim has of the capacity of a shared device.
	Consumed map[string]int64 `json:"consumed,omitempty"`
}

// Method is what the kubelet asks for.
type Method string

// The kubelet's methods.
const (
	Prepare   Method = "prepare"
	Unprepare Method = "unprepare"
)

// Call is a request of the kubelet for one claim, before the plugin has it. A call without a Return has an unknown outcome:
// what was asked for may have happened or not, or may happen yet while the plugin runs.
type Call struct {
	// ID is the same in the Return. A request for several claims is several calls.
	ID     string `json:"id"`
	Method Method `json:"method"`
	Claim  string `json:"claim"`
}

// Return is the plugin's answer, once the plugin has given it.
type Return struct {
	ID     string `json:"id"`
	Method Method `json:"method"`
	Claim  string `json:"claim"`
	// Error is what the plugin says went wrong, empty after success.
	Error string `json:"error,omitempty"`
	// Devices are what Prepare returned.
	Devices []Prepared `json:"devices,omitempty"`
}

// Prepared is a device that the plugin made ready.
type Prepared struct {
	Device string   `json:"device"`
	CDI    []string `json:"cdi,omitempty"`
}

// Change is what about the hardware changed.
type Change string

// The changes of hardware.
const (
	PartitionCreated   Change = "partition-created"
	PartitionDestroyed Change = "partition-destroyed"
	// MIGMode and ComputeMode have their value in Hardware.Value.
	MIGMode     Change = "mig-mode"
	ComputeMode Change = "compute-mode"
	// ClientStarted and ClientEnded are of a process that uses the GPU, whose PID and Program are named.
	ClientStarted Change = "client-started"
	ClientEnded   Change = "client-ended"
	// ServedStarted and ServedEnded are of a program that uses the GPU, or the named partition of it, through an MPS server. One
	// that ends together with its server has no end.
	ServedStarted Change = "mps-client-started"
	ServedEnded   Change = "mps-client-ended"
	// GPULost and GPUBack are of a GPU that fell off the bus or was taken out, and is there again.
	GPULost Change = "gpu-lost"
	GPUBack Change = "gpu-back"
	// DriverUnloaded and DriverLoaded are of the whole node, as is Booted.
	DriverUnloaded Change = "driver-unloaded"
	DriverLoaded   Change = "driver-loaded"
	Booted         Change = "booted"
)

// Hardware is a change of the simulated hardware.
type Hardware struct {
	Change Change `json:"change"`
	// GPU is the name of the device that is the whole of it; empty for changes of the node.
	GPU string `json:"gpu,omitempty"`
	// Partition that was created or destroyed, or that an MPS client uses.
	Partition *Partition `json:"partition,omitempty"`
	// PID and Program of a client, and the UID of the Pod of one of MPS that starts: empty where it is in none, or was gone at once.
	PID     int    `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	Pod     string `json:"pod,omitempty"`
	Value   string `json:"value,omitempty"`
	// By is the program that changed it: the plugin, an administrator's tool, or the simulator where nobody did.
	By string `json:"by,omitempty"`
}

// Partition is a partition that exists, or existed.
type Partition struct {
	// Profile is the profile ID, Start the first memory slice.
	Profile int `json:"profile"`
	Start   int `json:"start"`
	// Serial distinguishes it from a later one in the same place of the same GPU.
	Serial uint64 `json:"serial"`
}

// ContainerState is what happened to a container.
type ContainerState string

// The states of containers.
const (
	ContainerStarted ContainerState = "started"
	ContainerEnded   ContainerState = "ended"
)

// Container is a container that started or ended.
type Container struct {
	ID    string         `json:"id"`
	State ContainerState `json:"state"`
	Name  string         `json:"name,omitempty"`
	// Pod is the UID of its pod.
	Pod string `json:"pod"`
}

// PodState is how far a pod that was deleted is at the API server.
type PodState string

// The states of pods that were deleted.
const (
	// PodEnding pods are Terminating: their containers end, and the kubelet gives back what they have.
	PodEnding PodState = "ending"
	PodGone   PodState = "gone"
)

// Pod is a pod of the node that was deleted.
type Pod struct {
	UID       string   `json:"uid"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	State     PodState `json:"state"`
}

// FaultState is what happened to a fault.
type FaultState string

// The states of faults.
const (
	FaultBegan FaultState = "began"
	// FaultEnded is when its cause was taken away, FaultRecovered when all worked again.
	FaultEnded     FaultState = "ended"
	FaultRecovered FaultState = "recovered"
)

// Fault is something that was done to the cluster on purpose.
type Fault struct {
	ID    int        `json:"id,omitempty"`
	Name  string     `json:"name"`
	State FaultState `json:"state"`
	// Target of the fault, such as a GPU.
	Target string `json:"target,omitempty"`
}

// SourceName names where events come from.
type SourceName string

// The sources of events.
const (
	SourceAPI      SourceName = "api"
	SourceKubelet  SourceName = "kubelet"
	SourceHardware SourceName = "hardware"
	SourceRuntime  SourceName = "runtime"
)

// Gap means that a source could not be watched from From until now: what happened meanwhile is only known by its result,
// and its events have the time at which the gap ended.
type Gap struct {
	Source SourceName    `json:"source"`
	From   time.Duration `json:"from"`
}

// Kind is KindStart.
func (Start) Kind() Kind { return KindStart }

// Kind is KindCounters.
func (Counters) Kind() Kind { return KindCounters }

// Kind is KindDevice.
func (Device) Kind() Kind { return KindDevice }

// Kind is KindWithdrawn.
func (Withdrawn) Kind() Kind { return KindWithdrawn }

// Kind is KindClaim.
func (Claim) Kind() Kind { return KindClaim }

// Kind is KindCall.
func (Call) Kind() Kind { return KindCall }

// Kind is KindReturn.
func (Return) Kind() Kind { return KindReturn }

// Kind is KindHardware.
func (Hardware) Kind() Kind { return KindHardware }

// Kind is KindContainer.
func (Container) Kind() Kind { return KindContainer }

// Kind is KindPod.
func (Pod) Kind() Kind { return KindPod }

// Kind is KindFault.
func (Fault) Kind() Kind { return KindFault }

// Kind is KindGap.
func (Gap) Kind() Kind { return KindGap }
