// SPDX-License-Identifier: Apache-2.0

// Package inspect makes a picture of a node's GPUs: what they offer, who holds what, how they reach each other. It is made
// of what was read of a machine (OfMachine) or of a cluster (OfPool). The package is pure: others read, it looks.
package inspect

import (
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/policy"
)

// Source is where a view comes from.
type Source string

// The sources.
const (
	// Machine: the GPUs of the machine that the program runs on, or of a simulated one.
	Machine Source = "machine"
	// Model: a fresh node of a known model.
	Model Source = "model"
	// Cluster: what the API server knows of a node.
	Cluster Source = "cluster"
)

// View is a node as people and programs see it. Its JSON is for programs: fields are added, never renamed.
type View struct {
	Source Source `json:"source"`
	// Node is the name of the node or of the model; empty for the machine that the program runs on.
	Node string `json:"node,omitempty"`
	// Driver is the name of the DRA driver.
	Driver string `json:"driver"`
	// Policy by which the GPUs offer what they offer; empty where it is not known, as of a cluster.
	Policy string `json:"policy,omitempty"`
	// DriverVersion and CUDAVersion are those of the NVIDIA driver. In slices they are semantic versions.
	DriverVersion string `json:"driverVersion,omitempty"`
	CUDAVersion   string `json:"cudaVersion,omitempty"`
	// GPUs in order of NVML index, or of device names where the indexes are not known.
	GPUs []GPU `json:"gpus"`
	// Connections between the GPUs in their order, in the words of nvidia-smi topo -m. Of a cluster, some words are less
	// exact: "NV" has no number, "<=PHB" stands for PHB or nearer.
	Connections [][]string `json:"connections"`
	// Problems are GPUs that cannot be read, and what else is amiss with the whole node.
	Problems []string `json:"problems,omitempty"`
}

// GPU is one GPU.
type GPU struct {
	// Name is "GPU0" for NVML index 0, as nvidia-smi counts.
	Name string `json:"name"`
	// Device is the name of the whole GPU's device, by which the names of its other shapes begin.
	Device     string `json:"device"`
	PCIAddress string `json:"pciAddress,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	Product    string `json:"product,omitempty"`
	// MemoryBytes is what workloads can use.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// MIG is "on" or "off", or "no" where the board cannot be partitioned; of a cluster, which does not know the mode, "yes"
	// or "no".
	MIG string `json:"mig,omitempty"`
	// PartitionMode is how partitions come to be by the node's policy; of a cluster it is not known.
	PartitionMode policy.MIGMode `json:"partitionMode,omitempty"`
	// Slices is the number of placement units of the board; of a cluster as far as devices tell.
	Slices      int    `json:"slices,omitempty"`
	NUMANode    *int   `json:"numaNode,omitempty"`
	CPUAffinity string `json:"cpuAffinity,omitempty"`
	PCIeRoot    string `json:"pcieRoot,omitempty"`
	PCIeSwitch  string `json:"pcieSwitch,omitempty"`
	// NVLinks is the number of links that are up.
	NVLinks     *int   `json:"nvlinks,omitempty"`
	NVLinkGroup string `json:"nvlinkGroup,omitempty"`
	// FabricClusterUUID and FabricCliqueID name the NVLink domain of several nodes.
	FabricClusterUUID string `json:"fabricClusterUUID,omitempty"`
	FabricCliqueID    *int   `json:"fabricCliqueID,omitempty"`
	// Offers is what the GPU can be handed out as while nobody holds any of it, Free what can be had of it now. The numbers
	// of partitions hold for each profile alone.
	Offers []Amount `json:"offers"`
	Free   []Amount `json:"free"`
	// Shapes are all devices of the GPU, in order of the scheduler's search.
	Shapes []Shape `json:"shapes"`
	// Partitions are those that exist or should, in order of their place.
	Partitions []Partition `json:"partitions,omitempty"`
	// Notes say why something is not offered and how that is changed.
	Notes []string `json:"notes,omitempty"`
}

// Amount is how many of a shape there are.
type Amount struct {
	// Type of the shape: "gpu", "timeslice", "mps" or "mig", as in the attribute.
	Type    string `json:"type"`
	Profile string `json:"profile,omitempty"`
	Count   int64  `json:"count"`
}

// ShapeState is whether a shape can be had.
type ShapeState string

// The states of shapes.
const (
	// Free: the next claim can have it.
	Free ShapeState = "free"
	// Held by claims, and no more of it can be had.
	Held ShapeState = "held"
	// Shared by claims, and there is room for more.
	Shared ShapeState = "shared"
	// Blocked by what claims hold, or by partitions that are there or are not there yet.
	Blocked ShapeState = "blocked"
	// Tainted: nobody holds it, and it is not to be handed out.
	Tainted ShapeState = "tainted"
)

// Shape is one form a GPU can be handed out in, which is one device.
type Shape struct {
	Device string `json:"device"`
	// Type is "gpu", "timeslice", "mps" or "mig".
	Type    string     `json:"type"`
	Profile string     `json:"profile,omitempty"`
	State   ShapeState `json:"state"`
	// Placement of a partition.
	Placement *gpu.Placement `json:"placement,omitempty"`
	// Total and Used of a shared GPU.
	Total  *Amounts `json:"total,omitempty"`
	Used   *Amounts `json:"used,omitempty"`
	HeldBy []Holder `json:"heldBy,omitempty"`
	Taints []Taint  `json:"taints,omitempty"`

	// needs of the GPU's counters, and the least that a claim takes of a shared GPU.
	needs stock
	least Amounts
	// ready tells that its partition is there already.
	ready bool
}

// Amounts are parts of a shared GPU; zero where it does not count them.
type Amounts struct {
	Shares       int64 `json:"shares,omitempty"`
	MemoryBytes  int64 `json:"memoryBytes,omitempty"`
	CoresPercent int64 `json:"coresPercent,omitempty"`
}

// Holder is a claim that has a shape.
type Holder struct {
	// Claim is "namespace/name".
	Claim string `json:"claim"`
	UID   string `json:"uid,omitempty"`
	// Pods that the claim is reserved for; only known of a cluster.
	Pods []string `json:"pods,omitempty"`
	// AdminAccess looks at the shape and holds nothing of it.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Has is what the claim has of a shared GPU.
	Has *Amounts `json:"has,omitempty"`
	// Interval of the time slices that the claim asked for.
	Interval string `json:"interval,omitempty"`
}

// Taint keeps a shape from being handed out.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
	// Meaning for people, and what can be done.
	Meaning string `json:"meaning"`
}

// PartitionState is how a partition stands to claims.
type PartitionState string

// The states of partitions.
const (
	// PartitionHeld by a claim.
	PartitionHeld PartitionState = "held"
	// PartitionPreparing: a claim's, about to be made or being made.
	PartitionPreparing PartitionState = "preparing"
	// PartitionReleasing: a claim gave it back, and it is still there.
	PartitionReleasing PartitionState = "releasing"
	// PartitionMissing: a claim holds it, and it is not there.
	PartitionMissing PartitionState = "missing"
	// PartitionReady: no claim holds it, and the next one can.
	PartitionReady PartitionState = "ready"
	// PartitionIdle: Cleave made it for a layout that the policy at hand does not have.
	PartitionIdle PartitionState = "idle"
	// PartitionForeign: nobody known made it.
	PartitionForeign PartitionState = "foreign"
)

// Partition is a partition that exists, or that a claim should have.
type Partition struct {
	Profile   string         `json:"profile"`
	ProfileID int            `json:"profileID"`
	Placement gpu.Placement  `json:"placement"`
	State     PartitionState `json:"state"`
	// GI is the ID of the GPU instance, UUID that of the MIG device; of a cluster only the UUID may be known.
	GI     *int     `json:"gi,omitempty"`
	UUID   string   `json:"uuid,omitempty"`
	HeldBy []Holder `json:"heldBy,omitempty"`
}
