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
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// hanging opens a session on a node of two GPUs of which a call on the first hangs, within a bubble of its own time, and
// ends the hang after the test.
func hanging(t *testing.T, call string, before bool) (*sim.Node, *nvml.Session) {
	t.Helper()
	node, err := sim.New("a30")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Faults().Clear(-1); err != nil {
			t.Error(err)
		}
		<-time.After(time.Second) // until the call that hung has seen it
	})
	hang := func() {
		if err := node.Faults().HangCall(0, call); err != nil {
			t.Fatal(err)
		}
	}
	if before {
		hang()
	}
	s, err := simulated.OpenNode(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	if !before {
		hang()
	}
	return node, s
}

func TestSession_HangingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, s := hanging(t, "nvmlDeviceGetUUID", false)
		sick, healthy := &s.Node().GPUs[0], &s.Node().GPUs[1]
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
		if err := s.Close(); !errors.Is(err, gpu.ErrHangs) {
			t.Errorf("end of the session: got %v, want it refused while a call hangs", err)
		}
		if err := node.Faults().Clear(-1); err != nil {
			t.Fatal(err)
		}
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
		_, s := hanging(t, "nvmlDeviceGetHandleByIndex_v2", true)
		if n, problems := len(s.Node().GPUs), s.Node().Problems; n != 1 || len(problems) != 1 || !errors.Is(problems[0].Err, gpu.ErrHangs) {
			t.Fatalf("got %d GPUs and problems %v, want the other GPU, and a problem that says that a call hangs", n, problems)
		}
		if err := s.VerifyGPU(t.Context(), &s.Node().GPUs[0]); err != nil {
			t.Errorf("the other GPU: %v", err)
		}
	})
}

func TestSession_HangingCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s := hanging(t, "nvmlDeviceCreateGpuInstanceWithPlacement", false)
		g := &s.Node().GPUs[0]
		shape := gpu.Shape{GPU: g, Profile: &g.MIG.Profiles[0], Placement: g.MIG.Profiles[0].Placements[0]}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel() // which does not end the wait: what has begun has to be known
		_, err := s.CreatePartition(ctx, shape)
		if !errors.Is(err, gpu.ErrHangs) || !errors.Is(err, gpu.ErrLeftBehind) {
			t.Errorf("got %v, want %v and %v", err, gpu.ErrHangs, gpu.ErrLeftBehind)
		}
	})
}
