// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Hardware is the access to the node's GPUs that the package needs.
type Hardware interface {
	// Node returns the inventory as published.
	Node() *policy.Node
	// Absent reports whether an address certainly has no GPU any more. A GPU that cannot be read is not absent.
	Absent(pci gpu.PCIAddress) bool
	// VerifyGPU fails if the GPU is lost or was replaced.
	VerifyGPU(ctx context.Context, g *gpu.GPU) error
	// Processes lists the IDs of the processes that use a GPU.
	Processes(ctx context.Context, pci gpu.PCIAddress) ([]int, error)
	// Usable reports why a published GPU cannot be used although it is present: gpu.ErrReleased while it is reset,
	// gpu.ErrModeChanged after a change of its MIG mode.
	Usable(g *gpu.GPU) error
	// Release closes a GPU so that it can be reset, and Retake opens it and reads it again.
	Release(ctx context.Context, pci gpu.PCIAddress) error
	Retake(ctx context.Context, pci gpu.PCIAddress) error
	// AwaitFabric waits, for a bounded time, until a whole GPU is registered with its NVLink fabric.
	AwaitFabric(ctx context.Context, g *gpu.GPU) error
	// ComputeMode returns a gpu.ComputeMode; gpu.ErrNotSupported if a GPU has none, as in MIG mode.
	ComputeMode(ctx context.Context, pci gpu.PCIAddress) (int, error)
	// SetMIG switches a GPU's MIG mode on or off; gpu.ErrInUse while a client has the GPU open, gpu.ErrPartitioned if
	// leaving the mode would destroy partitions.
	SetMIG(ctx context.Context, pci gpu.PCIAddress, enable bool) error
	// CreatePartition creates a complete partition or none; gpu.ErrInsufficientResources if its place is taken,
	// gpu.ErrInUse while a client has the GPU open, gpu.ErrLeftBehind if something was created that could not be destroyed.
	CreatePartition(ctx context.Context, shape gpu.Shape) (gpu.Partition, error)
	// DestroyPartition destroys a partition; a missing one is not an error; gpu.ErrInUse while a process uses it.
	DestroyPartition(ctx context.Context, pci gpu.PCIAddress, part gpu.Partition) error
	// Partitions lists the partitions of a GPU, including incomplete ones.
	Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error)
	// PartitionAt returns the partition with the given profile and placement, or nil.
	PartitionAt(ctx context.Context, pci gpu.PCIAddress, like gpu.Partition) (*gpu.Partition, error)
}

// CDI is the access to container device specs that the package needs once the driver is loaded.
type CDI interface {
	// DeviceID returns the fully qualified CDI name of a whole GPU.
	DeviceID(device string) string
	// PartitionsID returns the CDI name of the parts of a GPU that its partitions need.
	PartitionsID(device string) string
	// ClaimID returns the CDI name of the edits of a claim's partition or share, in addition to its GPU.
	ClaimID(uid types.UID, d *records.Device) string
	// Ensure fails unless a container runtime can resolve the IDs of whole GPUs now.
	Ensure(ctx context.Context, ids []string) error
	// EnsureNodes creates missing device nodes on the host for the partitions of a prepared claim.
	EnsureNodes(ctx context.Context, r *records.Record)
	// WriteClaim writes the spec of a claim's devices that need more than their GPU, HasClaim reports whether it exists.
	WriteClaim(ctx context.Context, r *records.Record) error
	HasClaim(uid types.UID) bool
	// ClaimSession returns the driver session in which the partition of a claim's device was created, according to the claim's spec;
	// empty if the spec does not record it.
	ClaimSession(uid types.UID, device string) string
}

// SpecRemover removes the specs of claims; it needs no driver.
type SpecRemover interface {
	// Claims lists the claims that have a spec.
	Claims() ([]types.UID, error)
	RemoveClaim(uid types.UID) error
}

// Metadata is the device metadata of claims, which the kubelet's plugin helper writes after Prepare and removes after Unprepare.
type Metadata interface {
	// Has reports whether the metadata of a prepared claim is complete, or is being written.
	Has(r *records.Record) bool
	// Restore writes it again. It asks the API server.
	Restore(ctx context.Context, r *records.Record) error
	// Remove removes that of a claim without a record.
	Remove(driver string, uid types.UID) error
}

// Sharing sets up GPU sharing.
type Sharing interface {
	// SetTimeSlice sets the interval of a GPU's time slices, one of v1alpha1.Intervals.
	SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error
	// StartMPS makes the MPS server of a GPU or partition, which has a UUID, serve a claim and returns its directories on the
	// host. It can be repeated. limits are those of a server that serves the claim alone; nil if claims share it as the
	// GPU offers it.
	StartMPS(ctx context.Context, uid types.UID, of gpu.Shape, uuid string, offer *policy.Offer, limits *records.MPS) (
		pipeDir, shmDir string, err error)
	// StopMPS removes a claim from an MPS server, named after the device of its GPU or partition; the server ends with its last claim.
	// A claim that it does not serve is not an error. It needs no GPU driver.
	StopMPS(ctx context.Context, uid types.UID, server string) error
	// RetainMPS removes all other claims of this driver name from an MPS server. It restores state of the server that a reload of
	// the driver cleared.
	RetainMPS(ctx context.Context, server string, uids []types.UID) error
	// ServedMPS lists the claims that the MPS servers of the node serve, for all driver names. It needs no GPU driver.
	ServedMPS(ctx context.Context) ([]records.Served, error)
}

// API is the part of the API server that the package uses.
type API interface {
	// Claim returns a claim, or nil if there is none of that name.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// ClaimByUID returns a claim of any namespace, or nil if there is none. It lists claims: use it rarely.
	ClaimByUID(ctx context.Context, uid types.UID) (*resourceapi.ResourceClaim, error)
}

// Processes finds processes of the host. An error means that the list may be incomplete.
type Processes interface {
	// OfPods lists processes of pods: at least one, if any are left.
	OfPods(ctx context.Context, pods []types.UID) ([]int, error)
	// OfClaim lists the processes of containers that were given a claim, if its pods are unknown.
	OfClaim(ctx context.Context, namespace, name string) ([]int, error)
}

// DriverSessions distinguishes sessions of the driver: a partition that was created in an earlier one is gone, or was created
// again by someone else with the same IDs and the same UUID.
type DriverSessions interface {
	// Of returns the current session of a GPU, given the whole-GPU device.
	Of(device string) string
	// Unbroken reports whether the current session is the GPU's first one in this boot.
	Unbroken(device string) bool
	// Witness of a GPU instance stays the same only as long as the instance exists; empty if there is none.
	Witness(minor, gi int) string
	// End ends the sessions of all GPUs, durably.
	End() error
}

// Notify reports a problem to an admin, for example as an Event on the node.
type Notify func(reason, message string)
