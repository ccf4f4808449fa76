// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleave-dra/cleave/pkg/driver/mps/api/v1alpha1"
)

// oldSupervisor is one of a release that knows no partitions.
type oldSupervisor struct {
	v1alpha1.UnimplementedSupervisorServer
}

func (oldSupervisor) Ensure(context.Context, *v1alpha1.EnsureRequest) (*v1alpha1.EnsureResponse, error) {
	return nil, status.Error(codes.InvalidArgument, "not the device name of a whole GPU")
}

func (oldSupervisor) Release(context.Context, *v1alpha1.ReleaseRequest) (*v1alpha1.ReleaseResponse, error) {
	return nil, status.Error(codes.InvalidArgument, "not the device name of a whole GPU")
}

func (oldSupervisor) Retain(context.Context, *v1alpha1.RetainRequest) (*v1alpha1.RetainResponse, error) {
	return nil, status.Error(codes.InvalidArgument, "not the device name of a whole GPU")
}

// Partitions are not kept for a supervisor that cannot have started a server in them.
func TestClient_SupervisorWithoutPartitions(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	v1alpha1.RegisterSupervisorServer(server, oldSupervisor{})
	go func() { _ = server.Serve(listener) }() // until Stop
	defer server.Stop()
	c, err := Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	const partition, whole = "gpu-0000-1b-00-0-mig-9-4", "gpu-0000-1b-00-0"
	if _, err := c.Ensure(t.Context(), Request{Claim: "a", Device: partition}); err == nil {
		t.Error("a server of a partition was started")
	}
	if err := c.Release(t.Context(), partition, "a"); err != nil {
		t.Errorf("Release of a partition: %v", err)
	}
	if err := c.Retain(t.Context(), partition, "owner", nil); err != nil {
		t.Errorf("Retain of a partition: %v", err)
	}
	if c.Release(t.Context(), whole, "a") == nil || c.Retain(t.Context(), whole, "owner", nil) == nil {
		t.Error("what was refused of a whole GPU passes for success")
	}
}
