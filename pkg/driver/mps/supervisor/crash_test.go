// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// script is what the plugin asks in a life of two claims, with the loss of their daemon in between, until ctx ends.
func script(ctx context.Context, s *Supervisor, h *fakeHost) []error {
	a, b := requestFor("a", 1), requestFor("b", 1)
	var errs []error
	for _, do := range []func() error{
		func() error { _, err := s.Ensure(ctx, a); return err },
		func() error { _, err := s.Ensure(ctx, b); return err },
		func() error {
			h.kill(a.Device)
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			return nil
		},
		func() error { return s.Release(ctx, a.Device, a.Claim) },
		func() error { return s.Release(ctx, b.Device, b.Claim) },
	} {
		if ctx.Err() != nil {
			break
		}
		errs = append(errs, do())
	}
	return errs
}

var errStep = errors.New("this step fails")

// Whatever step fails, trying again mends it, and nothing is left in the end.
func TestSupervisor_EachStepFails(t *testing.T) {
	names := map[string]int{}
	for n := 1; ; n++ {
		done := false
		onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
			count, failed := 0, ""
			h.onStep(func(what string) error {
				if count++; count == n {
					failed = what
					return fmt.Errorf("%s: %w", what, errStep)
				}
				return nil
			})
			errs := script(t.Context(), s, h)
			h.onStep(nil)
			names[failed]++
			done = failed == ""
			for _, err := range errs {
				if err != nil && !errors.Is(err, errStep) {
					t.Errorf("%d, %s: got %v", n, failed, err)
				}
			}
			go s.CleanUp()
			time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
			for _, claim := range []string{"a", "b"} {
				ensure(t, s, requestFor(claim, 1))
			}
			for _, claim := range []string{"a", "b"} {
				release(t, s, requestFor(claim, 1))
			}
			if left := h.left(t, config); left != "" {
				t.Errorf("%d, %s failed: left behind: %s", n, failed, left)
			}
		})
		if done || t.Failed() {
			break
		}
	}
	if len(names) < 15 {
		t.Errorf("only these steps failed: %v", names)
	}
}

// Killed before or after any step and started again, a claim either has its daemon or is gone, and after the last one
// nothing is left.
func TestSupervisor_KilledAtEachStep(t *testing.T) {
	names := map[string]int{}
	for n := 1; ; n++ {
		done := false
		synctest.Test(t, func(t *testing.T) {
			h, config := newFakeHost(), testConfig(t)
			at := firstLife(t, config, h, n)
			names[at]++
			done = at == ""
			s := h.start(t, config)
			defer func() { h.stop() }()
			synctest.Wait()
			time.Sleep(time.Second) //nolint:forbidigo // in a bubble
			checkWholeOrGone(t, fmt.Sprintf("%d, killed at %q", n, at), s, h)
			for _, claim := range []string{"a", "b", "c"} {
				ensure(t, s, requestFor(claim, 1)) // the plugin repeats what got no answer
			}
			if err := s.Retain(t.Context(), requestFor("", 1).Device, testOwner, nil); err != nil {
				t.Errorf("%d, killed at %q: %v", n, at, err)
			}
			if left := h.left(t, config); left != "" {
				t.Errorf("%d, killed at %q: left behind: %s", n, at, left)
			}
		})
		if done || t.Failed() {
			break
		}
	}
	if len(names) < 20 {
		t.Errorf("killed at these steps only: %v", names)
	}
}

// firstLife runs the script until the supervisor dies at its nth step, and reports which that was. From then on none of its
// goroutines does anything any more.
func firstLife(t *testing.T, config Config, h *fakeHost, n int) (at string) {
	life, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := New(life, config, h.host(), "boot-1")
	ended := make(chan struct{})
	count := 0
	h.onStep(func(what string) error {
		if count++; count < n {
			return nil
		}
		if count == n {
			at = what
			close(ended)
		}
		<-life.Done()
		runtime.Goexit()
		return nil
	})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		script(life, s, h)
	}()
	select {
	case <-ended:
	case <-finished:
	}
	cancel()
	synctest.Wait()
	h.onStep(nil)
	return at
}

// checkWholeOrGone compares what the supervisor says with what there is.
func checkWholeOrGone(t *testing.T, when string, s *Supervisor, h *fakeHost) {
	t.Helper()
	gpus := s.Status().GPUs
	h.mu.Lock()
	defer h.mu.Unlock()
	switch len(gpus) {
	case 0:
		if len(h.processes)+len(h.mounts)+len(h.modes) > 0 {
			t.Errorf("%s: no claims, but %d processes, mounts %v, modes %v", when, len(h.processes), h.mounts, h.modes)
		}
	case 1:
		g := gpus[0]
		p := h.processes[g.PID]
		if g.State != mps.Running || len(g.Claims) == 0 || p == nil || len(h.processes) != 1 || len(h.mounts) != 3 || h.modes[requestFor("", 1).PCI] != 3 {
			t.Errorf("%s: %+v, but %d processes, mounts %v, modes %v", when, g, len(h.processes), h.mounts, h.modes)
		}
	}
}
