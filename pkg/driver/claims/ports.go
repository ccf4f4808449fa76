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

// Hardware is what the package needs of the node's GPUs.
type Hardware interface {
	// Node is the inventory as published.
	Node() *policy.Node
	// Absent reports whether it is certain that no GPU is at an address any more. One that cannot be read is not absent.
	Absent(pci gpu.PCIAddress) bool
	// VerifyGPU fails if the GPU is lost or another one sits in its place.
	VerifyGPU(ctx context.Context, g *gpu.GPU) error
	// Processes lists the ids of the processes that use a GPU.
	Processes(ctx context.Context, pci gpu.PCIAddress) ([]int, error)
	// Usable reports why a GPU as it was published cannot be used though it is there: gpu.ErrReleased while its MIG mode is being
	// changed, gpu.ErrModeChanged after.
	Usable(g *gpu.GPU) error
	// Release closes a GPU, so that it can be reset, and Retake opens it again and reads it anew.
	Release(ctx context.Context, pci gpu.PCIAddress) error
	Retake(ctx context.Context, pci gpu.PCIAddress) error
	// AwaitFabric waits, for a bounded time, until a whole GPU is registered with its NVLink fabric.
	AwaitFabric(ctx context.Context, g *gpu.GPU) error
	// ComputeMode is one of gpu.ComputeMode; gpu.ErrNotSupported where a GPU has none, as in MIG mode.
	ComputeMode(ctx context.Context, pci gpu.PCIAddress) (int, error)
	// SetMIG switches a GPU's MIG mode on or off; gpu.ErrInUse while a client has the GPU open, gpu.ErrPartitioned where
	// leaving the mode would destroy partitions.
	SetMIG(ctx context.Context, pci gpu.PCIAddress, enable bool) error
	// CreatePartition creates a partition whole or not at all; gpu.ErrInsufficientResources if its place is taken,
	// gpu.ErrInUse while a client has the GPU open, gpu.ErrLeftBehind if something was created that could not be destroyed.
	CreatePartition(ctx context.Context, shape gpu.Shape) (gpu.Partition, error)
	// DestroyPartition destroys one; one that is gone is no error; gpu.ErrInUse while a process is in it.
	DestroyPartition(ctx context.Context, pci gpu.PCIAddress, part gpu.Partition) error
	// Partitions lists the partitions of a GPU, incomplete ones too.
	Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error)
	// PartitionAt returns the one with the profile and placement of another, or nil.
	PartitionAt(ctx context.Context, pci gpu.PCIAddress, like gpu.Partition) (*gpu.Partition, error)
}

// CDI is what the package needs of the container device specs once the driver is there.
type CDI interface {
	// DeviceID is the fully qualified CDI name of a whole GPU.
	DeviceID(device string) string
	// PartitionsID is that of what partitions need of their GPU.
	PartitionsID(device string) string
	// ClaimID is that of what a partition or share of a claim has in addition to its GPU.
	ClaimID(uid types.UID, d *records.Device) string
	// Ensure fails unless a container runtime can resolve the ids of whole GPUs now.
	Ensure(ctx context.Context, ids []string) error
	// EnsureNodes creates what device nodes the partitions of a prepared claim lack on the host.
	EnsureNodes(ctx context.Context, r *records.Record)
	// WriteClaim writes the spec of a claim's devices that need more than their GPU, HasClaim reports whether it is there.
	WriteClaim(ctx context.Context, r *records.Record) error
	HasClaim(uid types.UID) bool
	// ClaimSession is the session of the driver in which the partition of a claim's device was created, as far as the claim's spec says;
	// empty where it does not.
	ClaimSession(uid types.UID, device string) string
}

// SpecRemover removes the specs of claims; it needs no driver.
type SpecRemover interface {
	// Claims lists the claims that have a spec.
	Claims() ([]types.UID, error)
	RemoveClaim(uid types.UID) error
}

// Sharing is what the package needs of those who make a GPU shared.
type Sharing interface {
	// SetTimeSlice sets the interval of a GPU's time slices, one of v1alpha1.Intervals.
	SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error
	// StartMPS makes the MPS server of a GPU or partition, which has a UUID, serve a claim and returns its directories on the
	// host. It can be repeated. limits are those of the server where it is the claim's alone; nil where claims share it as the
	// GPU offers it.
	StartMPS(ctx context.Context, uid types.UID, of gpu.Shape, uuid string, offer *policy.Offer, limits *records.MPS) (
		pipeDir, shmDir string, err error)
	// StopMPS takes a claim from an MPS server, named after the device of its GPU or partition, which ends with the last one. A
	// claim that it does not serve is no error. It needs no GPU driver.
	StopMPS(ctx context.Context, uid types.UID, server string) error
	// RetainMPS takes all other claims of this driver name from an MPS server. It restores what the server lost by a reload of
	// the driver.
	RetainMPS(ctx context.Context, server string, uids []types.UID) error
	// ServedMPS lists what the MPS servers of the node serve, of all driver names. It needs no GPU driver.
	ServedMPS(ctx context.Context) ([]records.Served, error)
}

// API is what the package asks of the API server.
type API interface {
	// Claim returns a claim, or nil if there is none of that name.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// ClaimByUID returns a claim of any namespace, or nil if there is none. It lists claims: use it rarely.
	ClaimByUID(ctx context.Context, uid types.UID) (*resourceapi.ResourceClaim, error)
}

// Processes finds processes of the host. An error means that there may be more.
type Processes interface {
	// OfPods lists processes of pods: some, if any are left.
	OfPods(ctx context.Context, pods []types.UID) ([]int, error)
	// OfClaim lists the processes of containers that have been given a claim, whose pods are not known.
	OfClaim(ctx context.Context, namespace, name string) ([]int, error)
}

// DriverSessions distinguishes the driver's sessions: a partition that was created in an earlier one is gone, or was created
// anew by someone else with the same IDs and the same UUID.
type DriverSessions interface {
	// Of is the present session of the GPU of a whole-GPU device.
	Of(device string) string
	// Unbroken reports whether that is the GPU's first session in this boot.
	Unbroken(device string) bool
	// Witness of a GPU instance is the same only as long as the instance exists; empty where there is none.
	Witness(minor, gi int) string
	// End ends the sessions of all GPUs, durably.
	End() error
}

// Notify reports to an admin what needs attention, such as by an Event on the node.
type Notify func(reason, message string)
