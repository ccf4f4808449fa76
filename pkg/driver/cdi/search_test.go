// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// A search that hangs with one GPU holds up neither the calls that need none, nor those for other GPUs if there is a spec.
func TestRefresh_SearchHangs(t *testing.T) {
	for name, atStart := range map[string]bool{"at the start": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				all := b.ids()
				if !atStart {
					must(t, b.Refresh(t.Context(), b.node))
				}
				hangs, running := make(chan struct{}), atomic.Int32{}
				b.opts.Search = func() (func(), error) { running.Add(1); return func() { running.Add(-1) }, nil }
				b.opts.CreateNodes = func(ctx context.Context, nodes driverroot.Nodes) error {
					<-hangs
					return b.createNodes(ctx, nodes)
				}
				must(t, b.board.Files().RemoveDeviceNodes("nvidia1"))
				for _, want := range []time.Duration{searchLimit, 0} {
					start := time.Now()
					err := b.Refresh(t.Context(), b.node)
					if took := time.Since(start); took != want || !errors.Is(err, gpu.ErrHangs) || running.Load() != 1 {
						t.Errorf("got %v after %s with %d searches running, want one that hangs, after %s", err, took, running.Load(), want)
					}
				}
				if err := b.Ensure(t.Context(), all[:1]); (err != nil) != atStart {
					t.Errorf("a GPU that is well: got %v, want an error: %t", err, atStart)
				}
				if got := b.Problems(); (len(got) > 0) != atStart {
					t.Errorf("problems %v, want any: %t", got, atStart)
				}
				close(hangs)
				synctest.Wait()
				must(t, b.Refresh(t.Context(), b.node))
				must(t, b.Ensure(t.Context(), all))
				if running.Load() != 0 {
					t.Errorf("%d searches are running", running.Load())
				}
			})
		})
	}
}

// A call that is canceled, or the plugin's end, neither waits for a search nor takes what it had found by then for the state of the
// node.
func TestRefresh_Canceled(t *testing.T) {
	for name, obeys := range map[string]bool{"the search ends with it": true, "the search goes on": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				must(t, b.Refresh(t.Context(), b.node))
				hangs := make(chan struct{})
				b.opts.CreateNodes = func(ctx context.Context, nodes driverroot.Nodes) error {
					if obeys {
						<-ctx.Done()
						return ctx.Err()
					}
					<-hangs
					return b.createNodes(ctx, nodes)
				}
				must(t, b.board.Files().RemoveDeviceNodes("nvidia1"))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start := time.Now()
				if err := b.Refresh(ctx, b.node); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
					t.Errorf("got %v after %s, want %v after a second", err, time.Since(start), context.DeadlineExceeded)
				}
				if got := b.Problems(); len(got) > 0 {
					t.Errorf("problems %v, want none", got)
				}
				close(hangs)
				synctest.Wait()
				obeys = false
				must(t, b.Refresh(t.Context(), b.node))
				must(t, b.Ensure(t.Context(), b.ids()))
			})
		})
	}
}

// A call waits for the search that another one left, and does not take it for one that hangs.
func TestEnsure_SearchLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		must(t, b.Refresh(t.Context(), b.node))
		first := true
		b.opts.CreateNodes = func(ctx context.Context, nodes driverroot.Nodes) error {
			if first {
				first = false
				<-time.After(5 * time.Second)
			}
			return b.createNodes(ctx, nodes)
		}
		must(t, b.board.Files().RemoveDeviceNodes("nvidia1"))
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Refresh(ctx, b.node); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		<-time.After(2 * time.Second)
		must(t, b.Ensure(t.Context(), b.ids()))
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("ended after %s, want 5 s", took)
		}
	})
}

// A GPU that is lost, or that hangs whenever it is opened, keeps no other GPU from containers.
func TestRefresh_AnotherGPUIsUnwell(t *testing.T) {
	for name, fault := range map[string]func(b *sim.Node) error{
		"lost": func(n *sim.Node) error { return n.Hardware().Lose(0) },
		"hangs": func(n *sim.Node) error {
			return errors.Join(n.Faults().HangCall(0, "nvmlDeviceGetHandleByUUID"), n.Faults().HangCall(0, "nvmlDeviceGetHandleByPciBusId_v2"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			must(t, fault(b.board))
			t.Cleanup(func() { must(t, b.board.Faults().Clear(-1)) })
			b.node.GPUs = b.node.GPUs[1:] // discovery has none that does not answer
			must(t, b.Refresh(t.Context(), b.node))
			must(t, b.Ensure(t.Context(), b.ids()))
			if got := b.Problems(); len(got) > 0 {
				t.Errorf("problems %v, want none", got)
			}
		})
	}
}
