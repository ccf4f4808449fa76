// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/cleave-dra/cleave/pkg/driver/mps/api/v1alpha1"
)

// frozen is a connection to a supervisor that accepts calls and does not answer.
type frozen struct{ grpc.ClientConnInterface }

func (frozen) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err() // as gRPC does
}

// Reconcile and Recover call it without a deadline, with the locks of GPUs.
func TestClient_SupervisorDoesNotAnswer(t *testing.T) {
	for name, call := range map[string]func(ctx context.Context, c *Client) error{
		"Ensure":  func(ctx context.Context, c *Client) error { _, err := c.Ensure(ctx, Request{}); return err },
		"Release": func(ctx context.Context, c *Client) error { return c.Release(ctx, "gpu-0000-1b-00-0", "a") },
		"Retain":  func(ctx context.Context, c *Client) error { return c.Retain(ctx, "gpu-0000-1b-00-0", testOwner, nil) },
		"Status":  func(ctx context.Context, c *Client) error { _, err := c.Status(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				start := time.Now()
				err := call(ctx, &Client{supervisor: v1alpha1.NewSupervisorClient(frozen{})})
				if took := time.Since(start); took != callTimeout || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v after %s, want a timeout after %s", err, took, callTimeout)
				}
			})
		})
	}
}
