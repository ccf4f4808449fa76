// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// The last share goes without a driver; the mode comes back when the driver does.
func TestComputeMode_RestoredWithDriver(t *testing.T) {
	tests := map[string]struct {
		before int // the mode before
		byAdmin,
		reloaded bool // what happens while the driver is away
		want int
	}{
		"as it was":              {before: 0, want: 0},
		"prohibited as it was":   {before: 2, want: 2},
		"exclusive as it was":    {before: 3, want: 3},
		"changed by an admin":    {before: 0, byAdmin: true, want: 2},
		"the driver was reset":   {before: 2, reloaded: true, want: 0},
		"exclusive, then reset":  {before: 3, reloaded: true, want: 0},
		"prohibited, then admin": {before: 2, byAdmin: true, want: 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
				a := requestFor("a", 1)
				h.modes[a.PCI] = tt.before
				ensure(t, s, a)
				h.locked(func() { h.noDriver = gpu.ErrDriverNotLoaded })
				if err := s.Release(t.Context(), a.Device, a.Claim); !errors.Is(err, gpu.ErrDriverNotLoaded) {
					t.Errorf("Release() = %v, want %v: the GPU may still be exclusive", err, gpu.ErrDriverNotLoaded)
				}
				if len(h.processes)+len(h.mounts) > 0 {
					t.Error("the daemon or its memory is left")
				}
				if st := s.Status().GPUs; len(st) != 1 || st[0].State != mps.Stopping || !strings.Contains(st[0].Message, "not loaded") {
					t.Errorf("status %+v", st)
				}
				s = h.start(t, config) // also over a restart
				go s.CleanUp()
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
				h.locked(func() {
					if tt.byAdmin {
						h.modes[a.PCI] = 2
					}
					if tt.reloaded {
						h.modes[a.PCI] = 0
					}
					h.noDriver = nil
				})
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
				if mode := h.modeOf(a.PCI); mode != tt.want {
					t.Errorf("mode %d, want %d", mode, tt.want)
				}
				if len(s.Status().GPUs) != 0 || len(dirsLeft(t, config)) != 0 {
					t.Errorf("left: %+v, %v", s.Status().GPUs, dirsLeft(t, config))
				}
			})
		})
	}
}

// An admin puts the GPU into MIG mode before its last share is gone: the claim can end, and the mode is given back after MIG mode.
func TestComputeMode_InMIGMode(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		a := requestFor("a", 1)
		ensure(t, s, a)
		h.locked(func() { h.inMIG = true })
		release(t, s, a)
		must(t, s.Retain(t.Context(), a.Device, testOwner, nil))
		s = h.start(t, config) // also over a restart
		synctest.Wait()
		if st := s.Status().GPUs; len(st) != 1 || st[0].State != mps.Stopping || !strings.Contains(st[0].Message, "in MIG mode") {
			t.Errorf("status %+v, want a GPU that waits for the end of MIG mode", st)
		}
		go s.CleanUp()
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		h.locked(func() { h.inMIG = false })
		if mode := h.modeOf(a.PCI); mode != 3 {
			t.Fatalf("mode %d, want that of MPS still", mode)
		}
		must(t, s.Retain(t.Context(), a.Device, testOwner, nil)) // as Prepare of a claim for the whole GPU asks for
		h.wantNothingLeft(t, config)
	})
}

// A release is a success only when the mode is back: the GPU is given to others then.
func TestRelease_ComputeModeDoesNotComeBack(t *testing.T) {
	tests := map[string]struct {
		trouble func(h *fakeHost)
		want    string
	}{
		"the call fails":              {func(h *fakeHost) { h.onStep(failStep("before setting the compute mode", 3)) }, errStep.Error()},
		"success without effect":      {func(h *fakeHost) { h.deaf = 3 }, "after the driver reported success for 0"},
		"it cannot be read":           {func(h *fakeHost) { h.onStep(failStep("before reading the compute mode", 3)) }, errStep.Error()},
		"the driver cannot be opened": {func(h *fakeHost) { h.onStep(failStep("before opening the driver", 3)) }, errStep.Error()},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
				a := requestFor("a", 1)
				ensure(t, s, a)
				tt.trouble(h)
				for range 3 {
					wantError(t, s.Release(t.Context(), a.Device, a.Claim), tt.want)
					if st := s.Status().GPUs; len(st) != 1 || st[0].State != mps.Stopping || st[0].Message == "" {
						t.Errorf("Status() = %+v, want a GPU that is stopping, and why", st)
					}
				}
				release(t, s, a)
				h.wantNothingLeft(t, config)
			})
		})
	}
}

func failStep(step string, times int) func(string) error {
	return func(what string) error {
		if what == step && times > 0 {
			times--
			return errStep
		}
		return nil
	}
}

func TestEnsure_ComputeModeIsNotTaken(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		h.deaf = 1
		if _, err := s.Ensure(t.Context(), requestFor("a", 1)); err == nil || !strings.Contains(err.Error(), "reported success for 3") {
			t.Errorf("Ensure() = %v, want an error: others could use the GPU alongside the server", err)
		}
		h.wantNothingLeft(t, config)
	})
}

// A reload of the driver brings the default mode back under claims that use MPS.
func TestRetain_DriverReloaded(t *testing.T) {
	tests := map[string]struct {
		reload     func(h *fakeHost, r mps.Request)
		keep       bool
		wantMode   int
		wantStarts int
		wantEvents []mps.EventKind
	}{
		"nothing happened":    {func(*fakeHost, mps.Request) {}, false, 3, 1, nil},
		"without a server":    {func(h *fakeHost, r mps.Request) { delete(h.modes, r.PCI) }, false, 3, 2, []mps.EventKind{mps.DaemonLost, mps.DaemonRestarted}},
		"under a server":      {func(h *fakeHost, r mps.Request) { delete(h.modes, r.PCI); h.serving[r.Device] = true }, false, 3, 1, nil},
		"--compute-mode=keep": {func(h *fakeHost, r mps.Request) { delete(h.modes, r.PCI) }, true, 0, 1, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
				if tt.keep {
					config.ComputeMode = KeepMode
					h.noDriver = gpu.ErrLibraryNotFound // which nothing asks
					s = h.start(t, config)
				}
				a := requestFor("a", 1)
				ensure(t, s, a)
				h.locked(func() { tt.reload(h, a) })
				must(t, s.Retain(t.Context(), a.Device, testOwner, []types.UID{"a"}))
				if h.modes[a.PCI] != tt.wantMode || h.starts != tt.wantStarts {
					t.Errorf("mode %d after %d starts, want %d after %d", h.modes[a.PCI], h.starts, tt.wantMode, tt.wantStarts)
				}
				events := s.reports.watch()
				defer s.reports.leave(events)
				for _, want := range tt.wantEvents {
					if got := <-events; got.Kind != want || len(got.Claims) != 1 {
						t.Errorf("event %+v, want %s of one claim", got, want)
					}
				}
				if len(events) > 0 {
					t.Errorf("unexpected event %+v", <-events)
				}
				release(t, s, a)
				h.wantNothingLeft(t, config)
			})
		})
	}
}

// A GPU that nobody may use for want of a daemon gets its mode back from a supervisor that keeps modes: clients could not start, though its
// daemon runs.
func TestComputeMode_ClosedBeforeKeep(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		a := requestFor("a", 1)
		ensure(t, s, a)
		h.locked(func() { h.silent = true })
		h.kill(a.Device)
		time.Sleep(5 * time.Minute) //nolint:forbidigo // in a bubble
		if got := h.modeOf(a.PCI); got != nvml.ComputeModeProhibited {
			t.Fatalf("mode %d, want PROHIBITED", got)
		}
		h.stop()
		h.locked(func() { h.silent = false })
		config.ComputeMode = KeepMode
		s = h.start(t, config)
		time.Sleep(30 * time.Minute) //nolint:forbidigo // in a bubble
		wantClaims(t, s, "a")
		if got := h.modeOf(a.PCI); got != nvml.ComputeModeDefault {
			t.Errorf("mode %d under a daemon that runs, want DEFAULT", got)
		}
	})
}
