// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
	mpsapi "github.com/cleave-dra/cleave/pkg/driver/mps/api/v1alpha1"
)

// fakeSupervisor answers on a socket that it has nothing in hand.
type fakeSupervisor struct {
	mpsapi.UnimplementedSupervisorServer
}

func (fakeSupervisor) Status(context.Context, *mpsapi.StatusRequest) (*mpsapi.StatusResponse, error) {
	return &mpsapi.StatusResponse{Version: "test"}, nil
}

// serve runs a supervisor on a socket until it is stopped.
func serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	mpsapi.RegisterSupervisorServer(server, fakeSupervisor{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// dial is a client of its own: one that found nobody waits a while before it looks again.
func dial(t *testing.T, socket string) *mps.Client {
	t.Helper()
	client, err := mps.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// socketPath is short, as the kernel wants it.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "s")
}

func TestAvailable(t *testing.T) {
	socket := socketPath(t)
	stop := func() {}
	steps := []struct {
		name string
		do   func()
		away bool
	}{
		{"not started", func() {}, true},
		{"started", func() { stop = serve(t, socket) }, false},
		{"still there", func() {}, false},
		{"stopped", func() { stop() }, true},
		{"started again", func() { stop = serve(t, socket) }, false},
	}
	for _, step := range steps {
		step.do()
		err := available(t.Context(), dial(t, socket))
		for limit := time.Now().Add(time.Minute); err != nil && !step.away && time.Now().Before(limit); { // it waits a second each time
			err = available(t.Context(), dial(t, socket))
		}
		if away := errors.Is(err, mps.ErrUnavailable); away != step.away || (err != nil) != step.away {
			t.Errorf("%s: got %v, want it away: %t", step.name, err, step.away)
		}
	}
	stop()
}

func TestNoSupervisor(t *testing.T) {
	if err := available(t.Context(), nil); !errors.Is(err, errMPSOff) {
		t.Errorf("got %v, want %v", err, errMPSOff)
	}
	if _, err := (noSupervisor{}).Ensure(t.Context(), mps.Request{}); !errors.Is(err, errMPSOff) {
		t.Errorf("got %v, want %v", err, errMPSOff)
	}
	// What an earlier run shared is not released by that.
	for _, err := range []error{noSupervisor{}.Release(t.Context(), "gpu", "a"), noSupervisor{}.Retain(t.Context(), "gpu", "owner", []types.UID{"a"})} {
		if !errors.Is(err, errMPSOff) {
			t.Errorf("got %v, want %v", err, errMPSOff)
		}
	}
	if err := (noSupervisor{}).Retain(t.Context(), "gpu", "owner", nil); err != nil {
		t.Errorf("got %v, want nothing to give back", err)
	}
}
