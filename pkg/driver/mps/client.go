// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/mps/api/v1alpha1"
)

// ErrUnavailable is wrapped by the error of any call that no supervisor answered. It can be retried.
var ErrUnavailable = errors.New("the MPS supervisor does not answer")

// callTimeout bounds a call. Callers hold locks of GPUs, and some wait without a deadline of their own, while a supervisor that is
// frozen or hangs accepts calls and does not answer. A start or stop that takes longer continues, and the next call waits for it.
// The kubelet waits 45 s for a claim.
const callTimeout = 30 * time.Second

// Client calls the supervisor. All methods are safe for concurrent use.
type Client struct {
	socket     string
	connection *grpc.ClientConn
	supervisor v1alpha1.SupervisorClient
}

// reconnect bounds how long a returned supervisor goes unnoticed: gRPC's default backoff grows to two minutes.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

// Dial returns a client of the supervisor at a socket. It connects with the first call.
func Dial(socket string) (*Client, error) {
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(reconnect), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("make a client of the MPS supervisor at %s: %w", socket, err)
	}
	return &Client{socket: socket, connection: connection, supervisor: v1alpha1.NewSupervisorClient(connection)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.connection.Close() }

// Available reports whether a supervisor answers; the error names the remedy if none does.
func (c *Client) Available(ctx context.Context) error {
	_, err := c.Status(ctx)
	return err
}

// Ensure lets a claim use the MPS server of a GPU, whose daemon is started if none runs. It is idempotent. A start continues when
// ctx ends; the claim is then registered, and must be released if it is no longer wanted.
func (c *Client) Ensure(ctx context.Context, r Request) (Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.supervisor.Ensure(ctx, &v1alpha1.EnsureRequest{
		ClaimUid: string(r.Claim), Gpu: r.Device, GpuUuid: r.UUID, PciAddress: r.PCI.String(), Owner: r.Owner,
		Settings: &v1alpha1.Settings{
			SharedMemoryBytes:      r.Settings.SharedMemory,
			ActiveThreadPercentage: int32(r.Settings.ActiveThreadPercentage),
			PinnedMemoryBytes:      r.Settings.PinnedMemory,
		},
	})
	if err != nil {
		return Endpoint{}, c.explain(ctx, "share "+r.Device+" by MPS", err)
	}
	return Endpoint{PipeDir: answer.GetPipeDir(), LogDir: answer.GetLogDir(), ShmDir: answer.GetShmDir()}, nil
}

// Release ends a claim's use. After the last one, the daemon, its directories and mounts are gone when it returns. It is
// idempotent, also for unknown claims.
func (c *Client) Release(ctx context.Context, gpuDevice string, claim types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.supervisor.Release(ctx, &v1alpha1.ReleaseRequest{Gpu: gpuDevice, ClaimUid: string(claim)})
	return c.explain(ctx, "end the MPS share of "+gpuDevice, err)
}

// Retain ends the use of a GPU by all claims of an owner but the given ones. Claims of other owners stay.
func (c *Client) Retain(ctx context.Context, gpuDevice, owner string, claims []types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r := &v1alpha1.RetainRequest{Gpu: gpuDevice, Owner: owner}
	for _, claim := range claims {
		r.ClaimUids = append(r.ClaimUids, string(claim))
	}
	_, err := c.supervisor.Retain(ctx, r)
	return c.explain(ctx, "end the MPS shares of "+gpuDevice+" without a claim", err)
}

// Status reports the state of all GPUs.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.supervisor.Status(ctx, &v1alpha1.StatusRequest{})
	if err != nil {
		return nil, c.explain(ctx, "read the MPS supervisor's status", err)
	}
	s := &Status{Version: answer.GetVersion()}
	for _, g := range answer.GetGpus() {
		s.GPUs = append(s.GPUs, GPUStatus{
			Device: g.GetName(), UUID: g.GetUuid(), State: states[g.GetState()], PID: int(g.GetPid()),
			Generation: g.GetGeneration(), Claims: uids(g.GetClaimUids()), Owners: owners(g.GetClaimOwners()), Message: g.GetMessage(),
		})
	}
	return s, nil
}

var states = map[v1alpha1.State]State{
	v1alpha1.State_STATE_STARTING: Starting,
	v1alpha1.State_STATE_RUNNING:  Running,
	v1alpha1.State_STATE_STOPPING: Stopping,
	v1alpha1.State_STATE_FAILED:   Failed,
}

// Watch calls back for every event, one after the other, until ctx ends; it reconnects whenever the supervisor was unavailable.
// Unacknowledged events are delivered to the next watcher, and may come twice: an event is acknowledged when the callback has
// returned.
func (c *Client) Watch(ctx context.Context, callback func(Event)) {
	logger := klog.FromContext(ctx)
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	last := ""
	for {
		err := c.watchOnce(ctx, callback, func() { last = "" })
		if ctx.Err() != nil {
			return
		}
		if message := c.explain(ctx, "watch MPS daemons", err).Error(); message != last {
			last = message
			logger.Info("Waiting for the MPS supervisor", "reason", message)
		}
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}

// watchOnce watches until the connection breaks, which is always an error.
func (c *Client) watchOnce(ctx context.Context, callback func(Event), connected func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.supervisor.Watch(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&v1alpha1.WatchRequest{}); err != nil {
		_, err = stream.Recv() // returns the reason
		return err
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		connected()
		callback(Event{
			Device: e.GetGpu(), Kind: kinds[e.GetKind()], Claims: uids(e.GetClaimUids()),
			Message: e.GetMessage(), Time: e.GetTime().AsTime(),
		})
		if err := stream.Send(&v1alpha1.WatchRequest{Acknowledge: e.GetId()}); err != nil {
			_, err = stream.Recv()
			return err
		}
	}
}

var kinds = map[v1alpha1.Event_Kind]EventKind{
	v1alpha1.Event_KIND_DAEMON_LOST:      DaemonLost,
	v1alpha1.Event_KIND_DAEMON_RESTARTED: DaemonRestarted,
	v1alpha1.Event_KIND_DAEMON_FAILED:    DaemonFailed,
}

func owners(from map[string]string) map[types.UID]string {
	to := make(map[types.UID]string, len(from))
	for uid, owner := range from {
		to[types.UID(uid)] = owner
	}
	return to
}

func uids(from []string) []types.UID {
	to := make([]types.UID, 0, len(from))
	for _, uid := range from {
		to = append(to, types.UID(uid))
	}
	return to
}

// explain turns a gRPC error into one that names the cause and, if there is one, the remedy.
func (c *Client) explain(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: the MPS supervisor did not answer in time: %w", what, ctx.Err())
	}
	s := status.Convert(err)
	if s.Code() == codes.Unavailable {
		return fmt.Errorf("%s: %w on %s: is its DaemonSet running on this node? (%s)", what, ErrUnavailable, c.socket, s.Message())
	}
	return fmt.Errorf("%s: %s", what, s.Message())
}
