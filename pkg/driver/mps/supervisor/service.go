// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/mps/api/v1alpha1"
)

// service is the gRPC service of the supervisor.
type service struct {
	v1alpha1.UnimplementedSupervisorServer
	*Supervisor
}

func (s service) Ensure(ctx context.Context, r *v1alpha1.EnsureRequest) (*v1alpha1.EnsureResponse, error) {
	pci, err := gpu.ParsePCIAddress(r.GetPciAddress())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	endpoint, err := s.Supervisor.Ensure(ctx, mps.Request{
		Claim: types.UID(r.GetClaimUid()), Device: r.GetGpu(), UUID: r.GetGpuUuid(), PCI: pci, Owner: r.GetOwner(),
		Settings: mps.Settings{
			SharedMemory:           r.GetSettings().GetSharedMemoryBytes(),
			ActiveThreadPercentage: int(r.GetSettings().GetActiveThreadPercentage()),
			PinnedMemory:           r.GetSettings().GetPinnedMemoryBytes(),
		},
	})
	if err != nil {
		return nil, code(err)
	}
	return &v1alpha1.EnsureResponse{PipeDir: endpoint.PipeDir, LogDir: endpoint.LogDir, ShmDir: endpoint.ShmDir}, nil
}

func (s service) Release(ctx context.Context, r *v1alpha1.ReleaseRequest) (*v1alpha1.ReleaseResponse, error) {
	if err := s.Supervisor.Release(ctx, r.GetGpu(), types.UID(r.GetClaimUid())); err != nil {
		return nil, code(err)
	}
	return &v1alpha1.ReleaseResponse{}, nil
}

func (s service) Retain(ctx context.Context, r *v1alpha1.RetainRequest) (*v1alpha1.RetainResponse, error) {
	claims := make([]types.UID, 0, len(r.GetClaimUids()))
	for _, uid := range r.GetClaimUids() {
		claims = append(claims, types.UID(uid))
	}
	if err := s.Supervisor.Retain(ctx, r.GetGpu(), r.GetOwner(), claims); err != nil {
		return nil, code(err)
	}
	return &v1alpha1.RetainResponse{}, nil
}

func (s service) Status(context.Context, *v1alpha1.StatusRequest) (*v1alpha1.StatusResponse, error) {
	st := s.Supervisor.Status()
	answer := &v1alpha1.StatusResponse{Version: st.Version}
	for _, g := range st.GPUs {
		answer.Gpus = append(answer.Gpus, &v1alpha1.GPU{
			Name: g.Device, Uuid: g.UUID, State: states[g.State], Pid: int32(g.PID),
			Generation: g.Generation, ClaimUids: texts(g.Claims), ClaimOwners: ownerTexts(g.Owners), Message: g.Message,
		})
	}
	return answer, nil
}

var states = map[mps.State]v1alpha1.State{
	mps.Starting: v1alpha1.State_STATE_STARTING,
	mps.Running:  v1alpha1.State_STATE_RUNNING,
	mps.Stopping: v1alpha1.State_STATE_STOPPING,
	mps.Failed:   v1alpha1.State_STATE_FAILED,
}

func (s service) Watch(stream v1alpha1.Supervisor_WatchServer) error {
	events := s.reports.watch()
	defer s.reports.leave(events)
	ended := make(chan error, 1)
	go func() { ended <- s.acknowledge(stream) }() // ends with the stream
	for {
		select {
		case e, open := <-events:
			if !open {
				return status.Errorf(codes.ResourceExhausted, "the watcher is %d events behind; watch again", maxReports)
			}
			if err := stream.Send(message(e)); err != nil {
				return err
			}
		case err := <-ended:
			return err
		case <-s.life.Done():
			return status.Error(codes.Unavailable, "the supervisor stops")
		}
	}
}

// acknowledge handles a watcher's acknowledgements until it leaves.
func (s service) acknowledge(stream v1alpha1.Supervisor_WatchServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.reports.acknowledge(s.work(stream.Context()), r.GetAcknowledge())
	}
}

var kinds = map[mps.EventKind]v1alpha1.Event_Kind{
	mps.DaemonLost:      v1alpha1.Event_KIND_DAEMON_LOST,
	mps.DaemonRestarted: v1alpha1.Event_KIND_DAEMON_RESTARTED,
	mps.DaemonFailed:    v1alpha1.Event_KIND_DAEMON_FAILED,
}

func message(r report) *v1alpha1.Event {
	return &v1alpha1.Event{
		Id: r.ID, Gpu: r.Device, Kind: kinds[r.Kind], ClaimUids: texts(r.Claims), Message: r.Message, Time: timestamppb.New(r.Time),
	}
}

func ownerTexts(from map[types.UID]string) map[string]string {
	to := make(map[string]string, len(from))
	for uid, owner := range from {
		to[string(uid)] = owner
	}
	return to
}

func texts(from []types.UID) []string {
	to := make([]string, 0, len(from))
	for _, uid := range from {
		to = append(to, string(uid))
	}
	return to
}

// maxMessage keeps an error, in bytes, within gRPC's limit on trailers.
const maxMessage = 6 << 10

// code tells callers whether to retry.
func code(err error) error {
	c := codes.Internal
	switch {
	case errors.Is(err, errInvalid):
		c = codes.InvalidArgument
	case errors.Is(err, errConflict):
		c = codes.FailedPrecondition
	case errors.Is(err, context.DeadlineExceeded):
		c = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		c = codes.Canceled
	}
	return status.Error(c, fmt.Sprintf("%.*s", maxMessage, err.Error()))
}
