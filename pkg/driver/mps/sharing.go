// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Supervisor is the node's MPS supervisor.
type Supervisor interface {
	Ensure(ctx context.Context, r Request) (Endpoint, error)
	Release(ctx context.Context, gpuDevice string, claim types.UID) error
	Retain(ctx context.Context, gpuDevice, owner string, claims []types.UID) error
	Status(ctx context.Context) (*Status, error)
}

// Sharing shares the GPUs of a node: time slices by the driver's nvidia-smi, MPS by the node's supervisor.
type Sharing struct {
	TimeSlices
	owner      string
	supervisor Supervisor
}

// TimeSlices sets the intervals of GPUs' time slices.
type TimeSlices interface {
	SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error
}

// NewSharing returns a Sharing whose claims are owned, at the supervisor, by a DRA driver name.
func NewSharing(owner string, supervisor Supervisor, slices TimeSlices) *Sharing {
	return &Sharing{TimeSlices: slices, owner: owner, supervisor: supervisor}
}

// StartMPS makes the MPS server of a GPU or partition, given with its UUID, serve a claim. The server's defaults are the most that
// a claim can have, since a client cannot raise them: a container gets its own limits from its environment. A client can
// deliberately drop its limits (docs/decisions/mps-defaults.md). A server for a single claim has the claim's limits, and needs no
// policy that offers MPS.
func (s *Sharing) StartMPS(
	ctx context.Context, uid types.UID, of gpu.Shape, uuid string, offer *policy.Offer, limits *records.MPS,
) (pipeDir, shmDir string, err error) {
	settings, err := settings(of, offer, limits)
	if err != nil {
		return "", "", err
	}
	if limits != nil {
		// The server of a claim that a plugin registered before it was killed has other settings.
		err = s.supervisor.Retain(ctx, of.Name(), s.owner, []types.UID{uid})
	}
	var endpoint Endpoint
	if err == nil {
		endpoint, err = s.supervisor.Ensure(ctx, Request{
			Claim: uid, Device: of.Name(), UUID: uuid, PCI: of.GPU.PCI, Settings: settings, Owner: s.owner,
		})
	}
	if err != nil {
		return "", "", &StartError{of.Name(), err}
	}
	return endpoint.PipeDir, endpoint.ShmDir, nil
}

// StartError is a failure to start the MPS server of a GPU or partition for a claim.
type StartError struct {
	// Device is the name of the whole GPU or the partition.
	Device string
	Err    error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("start the MPS server of %s: %v", Subject(e.Device), e.Err)
}
func (e *StartError) Unwrap() error { return e.Err }

// settings of the server of a GPU or partition.
func settings(of gpu.Shape, offer *policy.Offer, limits *records.MPS) (Settings, error) {
	sharing := offer.Sharing(of.Shared(gpu.MPS))
	if limits == nil && sharing == nil {
		return Settings{}, fmt.Errorf("%s is not shared by MPS: %s", Subject(of.Name()), why(of, offer))
	}
	if limits == nil {
		return Settings{
			SharedMemory: sharing.SharedMemory, ActiveThreadPercentage: int(sharing.Cores.Total), PinnedMemory: sharing.Memory.Total,
		}, nil
	}
	own := Settings{
		SharedMemory: v1alpha1.DefaultSharedMemory, ActiveThreadPercentage: int(limits.ThreadPercentage), PinnedMemory: limits.Memory,
	}
	if sharing != nil {
		own.SharedMemory = sharing.SharedMemory
	}
	return own, nil
}

func why(of gpu.Shape, offer *policy.Offer) string {
	if offer.NoMPS != "" && !of.IsPartition() {
		return offer.NoMPS
	}
	return "the node's policy does not offer it"
}

// StopMPS releases a claim from an MPS server.
func (s *Sharing) StopMPS(ctx context.Context, uid types.UID, server string) error {
	if err := s.supervisor.Release(ctx, server, uid); err != nil {
		return fmt.Errorf("release the MPS share of claim %s on %s: %w", uid, Subject(server), err)
	}
	return nil
}

// ServedMPS lists the claims that MPS servers of the node serve, in order of device and claim.
func (s *Sharing) ServedMPS(ctx context.Context) ([]records.Served, error) {
	status, err := s.supervisor.Status(ctx)
	if err != nil {
		return nil, err
	}
	var served []records.Served
	for _, g := range status.GPUs {
		for _, uid := range g.Claims {
			served = append(served, records.Served{Server: g.Device, Claim: uid, Owner: g.Owners[uid]})
		}
	}
	return served, nil
}

// RetainMPS releases all other claims of this plugin's name from an MPS server.
func (s *Sharing) RetainMPS(ctx context.Context, server string, uids []types.UID) error {
	if err := s.supervisor.Retain(ctx, server, s.owner, uids); err != nil {
		return fmt.Errorf("reconcile the MPS server of %s: %w", Subject(server), err)
	}
	return nil
}
