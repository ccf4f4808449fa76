// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Source is the origin of a view.
type Source string

// The sources.
const (
	// Machine is the machine that the program runs on, or a simulated one.
	Machine Source = "machine"
	// Model is a node model.
	Model Source = "model"
	// Cluster is a node from its objects on the API server.
	Cluster Source = "cluster"
)

// View describes a node for people and programs. Its JSON is an interface: fields and values may be added, never renamed.
type View struct {
	Source Source `json:"source"`
	// Node is the name of the node or of the model; empty for the machine that the program runs on.
	Node string `json:"node,omitempty"`
	// Driver is the name of the DRA driver.
	Driver string `json:"driver"`
	// Policy is the active policy; empty if unknown, as in a cluster.
	Policy string `json:"policy,omitempty"`
	// DriverVersion and CUDAVersion are those of the NVIDIA driver, as nvidia-smi writes them.
	DriverVersion string `json:"driverVersion,omitempty"`
	CUDAVersion   string `json:"cudaVersion,omitempty"`
	// ConfidentialComputing reports that the GPUs run in that mode; false if unknown, as in a cluster.
	ConfidentialComputing bool `json:"confidentialComputing,omitempty"`
	// GPUs in order of NVML index, or of device names if indexes are unknown.
	GPUs []GPU `json:"gpus"`
	// Connections between the GPUs in their order, in the words of nvidia-smi topo -m. In a cluster, some words are less
	// exact: "NV" without a number, "<=PHB" for PHB or nearer.
	Connections [][]string `json:"connections"`
	// Problems are unreadable GPUs and problems of the whole node.
	Problems []string `json:"problems,omitempty"`

	// overdrawn says that of a pool more is allocated than there is.
	overdrawn bool
}

// GPU is one GPU.
type GPU struct {
	// Name is "GPU0" for NVML index 0, as nvidia-smi counts.
	Name string `json:"name"`
	// Device is the name of the whole GPU's device, which prefixes the names of its other shapes.
	Device     string `json:"device"`
	PCIAddress string `json:"pciAddress,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	Product    string `json:"product,omitempty"`
	// MemoryBytes is the memory available to workloads.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// MIG is "on" or "off", or "no" if the board does not support it; in a cluster, where the mode is unknown, "yes" or "no".
	MIG string `json:"mig,omitempty"`
	// PartitionMode is the policy's mode of partitions; unknown in a cluster.
	PartitionMode policy.MIGMode `json:"partitionMode,omitempty"`
	// Slices is the number of placement units of the board; in a cluster, as far as devices show it.
	Slices      int    `json:"slices,omitempty"`
	NUMANode    *int   `json:"numaNode,omitempty"`
	CPUAffinity string `json:"cpuAffinity,omitempty"`
	PCIeRoot    string `json:"pcieRoot,omitempty"`
	PCIeSwitch  string `json:"pcieSwitch,omitempty"`
	// NVLinks is the number of active links.
	NVLinks     *int   `json:"nvlinks,omitempty"`
	NVLinkGroup string `json:"nvlinkGroup,omitempty"`
	// FabricClusterUUID and FabricCliqueID identify the multi-node NVLink domain.
	FabricClusterUUID string `json:"fabricClusterUUID,omitempty"`
	FabricCliqueID    *int   `json:"fabricCliqueID,omitempty"`
	// Offers is what the GPU offers without allocations, Free what is available now. Counts of partitions are per profile.
	Offers []Amount `json:"offers"`
	Free   []Amount `json:"free"`
	// Shapes are all devices of the GPU, in order of the scheduler's search.
	Shapes []Shape `json:"shapes"`
	// Partitions are those that exist or should, in order of their place.
	Partitions []Partition `json:"partitions,omitempty"`
	// Notes explain why something is not offered and how to change that.
	Notes []string `json:"notes,omitempty"`
}

// Amount is how many of a shape there are.
type Amount struct {
	// Type of the shape: "gpu", "timeslice", "mps", "mig", "mig-timeslice" or "mig-mps", as in the attribute.
	Type    string `json:"type"`
	Profile string `json:"profile,omitempty"`
	Count   int64  `json:"count"`
}

// ShapeState is the availability of a shape.
type ShapeState string

// The states of shapes.
const (
	// Free shapes are available to the next claim.
	Free ShapeState = "free"
	// Allocated shapes are allocated, and full if shared.
	Allocated ShapeState = "held"
	// Shared shapes are allocated and have room for more claims.
	Shared ShapeState = "shared"
	// Blocked shapes overlap allocations or partitions, or are not created yet.
	Blocked ShapeState = "blocked"
	// Tainted shapes are not allocated, and excluded by a taint.
	Tainted ShapeState = "tainted"
)

// Shape is one form in which a GPU is offered: a whole GPU, a partition or a share. It is one device.
type Shape struct {
	Device string `json:"device"`
	// Type is "gpu", "timeslice", "mps", "mig", "mig-timeslice" or "mig-mps".
	Type    string     `json:"type"`
	Profile string     `json:"profile,omitempty"`
	State   ShapeState `json:"state"`
	// Placement of a partition.
	Placement *gpu.Placement `json:"placement,omitempty"`
	// Total and Used are the amounts of a shared GPU or partition.
	Total  *Amounts `json:"total,omitempty"`
	Used   *Amounts `json:"used,omitempty"`
	Claims []Claim  `json:"heldBy,omitempty"`
	Taints []Taint  `json:"taints,omitempty"`

	// needs are the consumed counters, least and usual the minimum and the default that a claim
	// takes of a shared GPU.
	needs        resourcepool.Stock
	least, usual Amounts
	// ready is set if its partition exists.
	ready bool
}

// Amounts are parts of a shared GPU or partition; zero if not counted.
type Amounts struct {
	Shares       int64 `json:"shares,omitempty"`
	MemoryBytes  int64 `json:"memoryBytes,omitempty"`
	CoresPercent int64 `json:"coresPercent,omitempty"`
}

// Claim is a claim that is allocated a shape.
type Claim struct {
	// Claim is "namespace/name".
	Claim string `json:"claim"`
	UID   string `json:"uid,omitempty"`
	// Pods that the claim is reserved for; known only in a cluster.
	Pods []string `json:"pods,omitempty"`
	// AdminAccess claims observe the shape and consume nothing.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// Has are the claim's amounts of a shared GPU or partition.
	Has *Amounts `json:"has,omitempty"`
	// Interval is the time slice interval that the claim requested.
	Interval string `json:"interval,omitempty"`
	// Used is what the claim does with the shape; known only of a machine with a running plugin.
	Used *Used `json:"used,omitempty"`
}

// Taint is a taint of a shape.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
	// Meaning explains the taint, with a remedy.
	Meaning string `json:"meaning"`
}

// PartitionState is the state of a partition.
type PartitionState string

// The states of partitions.
const (
	// PartitionAllocated is allocated to a claim.
	PartitionAllocated PartitionState = "held"
	// PartitionPreparing is being created for a claim.
	PartitionPreparing PartitionState = "preparing"
	// PartitionReleasing was released by a claim and still exists.
	PartitionReleasing PartitionState = "releasing"
	// PartitionMissing is allocated to a claim and does not exist.
	PartitionMissing PartitionState = "missing"
	// PartitionReady is available to the next claim.
	PartitionReady PartitionState = "ready"
	// PartitionIdle was created for a layout that the policy no longer has.
	PartitionIdle PartitionState = "idle"
	// PartitionUnmanaged is unmanaged: Cleave has no record of it.
	PartitionUnmanaged PartitionState = "foreign"
)

// Partition is a partition that exists, or that a claim should have.
type Partition struct {
	Profile   string         `json:"profile"`
	ProfileID int            `json:"profileID"`
	Placement gpu.Placement  `json:"placement"`
	State     PartitionState `json:"state"`
	// GI is the ID of the GPU instance, UUID that of the MIG device; in a cluster, at most the UUID is known.
	GI     *int    `json:"gi,omitempty"`
	UUID   string  `json:"uuid,omitempty"`
	Claims []Claim `json:"heldBy,omitempty"`
}
