// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// hanging opens a session on a node of two GPUs of which a call on the first hangs, within a bubble of its own time, and
// ends the hang after the test.
func hanging(t *testing.T, call string, atStart bool) *bed {
	t.Helper()
	hang := func(n *sim.Node) error { return n.Faults().HangCall(0, call) }
	before := asItIs
	if atStart {
		before = hang
	}
	b := newBedAfter(t, "a30", before)
	t.Cleanup(func() {
		must(t, b.node.Faults().Clear(-1))
		<-time.After(time.Second) // until the call that hung has seen it
	})
	must(t, hang(b.node))
	return b
}

func TestSession_HangingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := hanging(t, "nvmlDeviceGetUUID", false)
		sick, healthy := s.gpu(0), s.gpu(1)
		start := time.Now()
		if err := s.VerifyGPU(t.Context(), sick); !errors.Is(err, gpu.ErrHangs) {
			t.Fatalf("got %v, want %v", err, gpu.ErrHangs)
		}
		if took := time.Since(start); took < 29*time.Second || took > 31*time.Second {
			t.Errorf("it took %s, want about 30 s", took)
		}
		start = time.Now()
		goroutines := runtime.NumGoroutine()
		for range 50 {
			if err := s.VerifyGPU(t.Context(), sick); !errors.Is(err, gpu.ErrHangs) {
				t.Fatalf("again: got %v, want %v", err, gpu.ErrHangs)
			}
			if _, err := s.Processes(t.Context(), sick.PCI); !errors.Is(err, gpu.ErrHangs) {
				t.Fatalf("another call: got %v, want %v", err, gpu.ErrHangs)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("100 calls while one hangs took %s, want none to wait", took)
		}
		if now := runtime.NumGoroutine(); now > goroutines {
			t.Errorf("%d goroutines, %d before: they pile up", now, goroutines)
		}
		if err := s.VerifyGPU(t.Context(), healthy); err != nil {
			t.Errorf("the other GPU: %v", err)
		}
		mustFail(t, s.Close(), gpu.ErrHangs)
		must(t, s.node.Faults().Clear(-1))
		synctest.Wait()
		<-time.After(time.Second) // of the bubble: the call that hung looks now and then whether it is released
		if err := s.VerifyGPU(t.Context(), sick); err != nil {
			t.Errorf("released: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSession_HangingCallAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := hanging(t, "nvmlDeviceGetHandleByIndex_v2", true)
		if n, problems := len(s.Node().GPUs), s.Node().Problems; n != 1 || len(problems) != 1 || !errors.Is(problems[0].Err, gpu.ErrHangs) {
			t.Fatalf("got %d GPUs and problems %v, want the other GPU, and a problem that says that a call hangs", n, problems)
		}
		if err := s.VerifyGPU(t.Context(), s.gpu(0)); err != nil {
			t.Errorf("the other GPU: %v", err)
		}
	})
}

func TestSession_HangingCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := hanging(t, "nvmlDeviceCreateGpuInstanceWithPlacement", false)
		g := s.gpu(0)
		shape := gpu.Shape{GPU: g, Profile: &g.MIG.Profiles[0], Placement: g.MIG.Profiles[0].Placements[0]}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel() // which does not end the wait: what has begun has to be known
		_, err := s.CreatePartition(ctx, shape)
		if !errors.Is(err, gpu.ErrHangs) || !errors.Is(err, gpu.ErrLeftBehind) {
			t.Errorf("got %v, want %v and %v", err, gpu.ErrHangs, gpu.ErrLeftBehind)
		}
	})
}
