// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// dirsLeft lists records and directories of GPUs.
func dirsLeft(t *testing.T, config Config) []string {
	t.Helper()
	var left []string
	for _, pattern := range []string{"gpu-*", filepath.Join(stateDir, "*"), filepath.Join(stateDir, ".gpu*")} {
		found, err := filepath.Glob(filepath.Join(config.Dir, pattern))
		must(t, err)
		left = append(left, found...)
	}
	return slices.DeleteFunc(left, func(name string) bool { return filepath.Base(name) == "corrupt" })
}

// must ends the test if what it needs fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal fails unless the two are equal.
func equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantError fails unless an error says all of these.
func wantError(t testing.TB, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one that says %q", says)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

func ensure(t *testing.T, s *Supervisor, r mps.Request) mps.Endpoint {
	t.Helper()
	e, err := s.Ensure(t.Context(), r)
	must(t, err)
	return e
}

func release(t *testing.T, s *Supervisor, r mps.Request) {
	t.Helper()
	must(t, s.Release(t.Context(), r.Device, r.Claim))
}

func wantClaims(t *testing.T, s *Supervisor, want ...types.UID) {
	t.Helper()
	var got []types.UID
	for _, g := range s.Status().GPUs {
		got = append(got, g.Claims...)
	}
	equal(t, "claims", want, got)
}

func TestEnsure_FirstClaimRelease_LastClaim(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		a, b := requestFor("a", 1), requestFor("b", 1)
		first := ensure(t, s, a)
		dir := filepath.Join(config.Dir, "gpu-0000-01-00-0")
		want := mps.Endpoint{PipeDir: dir + "/pipe/clients", LogDir: dir + "/log", ShmDir: dir + "/shm"}
		equal(t, "endpoint", want, first)
		equal(t, "compute modes", map[gpu.PCIAddress]int{a.PCI: 3}, h.modes)
		equal(t, "mounts", map[string]int64{dir + "/shm": 64 << 20, dir + "/pipe": pipeSize, dir + "/log": logSize}, h.mounts)
		defaults := []string{"set_default_active_thread_percentage 50", "set_default_device_pinned_mem_limit " + testUUID + " 4096M"}
		equal(t, "defaults", defaults, h.defaults[a.Device])
		if again := ensure(t, s, b); again != first || h.starts != 1 {
			t.Errorf("the second claim got %v after %d starts", again, h.starts)
		}
		wantClaims(t, s, "a", "b")
		release(t, s, a)
		release(t, s, a)
		wantClaims(t, s, "b")
		if len(h.processes) != 1 {
			t.Error("the daemon was ended with a claim left")
		}
		release(t, s, b)
		h.wantNothingLeft(t, config)
		release(t, s, b)
		if err := s.Release(t.Context(), "gpu-0000-77-00-0", "x"); err != nil {
			t.Errorf("release of what never was: %v", err)
		}
	})
}

// With a daemon that runs, a claim costs one small write, and one that is known nothing.
func TestEnsure_RunningDaemonCostsOneWrite(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, _ Config) {
		ensure(t, s, requestFor("a", 1))
		var steps []string
		h.onStep(func(what string) error { steps = append(steps, what); return nil })
		ensure(t, s, requestFor("b", 1))
		ensure(t, s, requestFor("b", 1))
		equal(t, "steps", []string{"before writing", "after writing"}, steps)
	})
}

func TestEnsure_GPUsDoNotWaitForEachOther(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, _ Config) {
		ensure(t, s, requestFor("a", 1))
		h.locked(func() { h.silent = true })
		failed := make(chan error, 1)
		go func() {
			_, err := s.Ensure(t.Context(), requestFor("b", 2))
			failed <- err
		}()
		synctest.Wait() // b's start waits for its daemon
		began := time.Now()
		ensure(t, s, requestFor("c", 1))
		// The same GPU is waited for, as long as the caller likes to.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Release(ctx, "gpu-0000-02-00-0", "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a time-out", err)
		}
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("waited %s, want 1s", waited)
		}
		wantError(t, <-failed, "--start-timeout")
		wantClaims(t, s, "a", "c")
	})
}

func TestEnsure_CallerLeaves(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, _ Config) {
		h.locked(func() { h.silent = true })
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = s.Ensure(ctx, requestFor("a", 1)) }()
		synctest.Wait()
		cancel()
		h.locked(func() {
			for _, p := range h.processes {
				p.ready = true
			}
		})
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		wantClaims(t, s, "a")
		if h.starts != 1 {
			t.Errorf("%d starts, want 1", h.starts)
		}
	})
}

func TestRelease_StubbornDaemon(t *testing.T) {
	for withstands, want := range []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second} {
		t.Run(fmt.Sprint(withstands), func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
				h.stubborn = withstands
				a := requestFor("a", 1)
				ensure(t, s, a)
				began := time.Now()
				err := s.Release(t.Context(), a.Device, a.Claim)
				if took := time.Since(began); took != want {
					t.Errorf("took %s, want %s", took, want)
				}
				if withstands == 3 {
					wantError(t, err, "does not end")
					if st := s.Status().GPUs; len(st) != 1 || st[0].State != mps.Stopping || st[0].Message == "" {
						t.Errorf("status %+v", st)
					}
					h.locked(func() {
						for _, p := range h.processes {
							p.withhold = 0
						}
					})
					err = s.Release(t.Context(), a.Device, a.Claim) // the kubelet tries again
				}
				if left := h.left(t, config); err != nil || left != "" {
					t.Errorf("left behind: %s, %v", left, err)
				}
			})
		})
	}
}

// The /dev/shm of claims that have ended is not that of the next ones, even if their daemon did not end with them.
func TestEnsure_AfterStubbornDaemon(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		h.stubborn = 3
		a, b := requestFor("a", 1), requestFor("b", 1)
		b.Settings.SharedMemory *= 2
		ensure(t, s, a)
		wantError(t, s.Release(t.Context(), a.Device, a.Claim), "does not end")
		h.locked(func() {
			for _, p := range h.processes {
				p.withhold = 0
			}
		})
		h.stubborn = 0
		e := ensure(t, s, b)
		equal(t, "size of /dev/shm", b.Settings.SharedMemory, h.mounts[e.ShmDir])
		release(t, s, b)
		h.wantNothingLeft(t, config)
	})
}

func TestEnsure_InvalidRequest(t *testing.T) {
	change := func(do func(*mps.Request)) mps.Request {
		r := requestFor("a", 1)
		do(&r)
		return r
	}
	tests := map[string]struct {
		request mps.Request
		want    string
	}{
		"no claim":           {change(func(r *mps.Request) { r.Claim = "" }), "UID of a claim"},
		"line feed in claim": {change(func(r *mps.Request) { r.Claim = "a\nb" }), "UID of a claim"},
		"long claim":         {change(func(r *mps.Request) { r.Claim = types.UID(strings.Repeat("a", 129)) }), "UID of a claim"},
		"command in UUID":    {change(func(r *mps.Request) { r.UUID = "GPU-1\nquit" }), "UUID of GPU"},
		"MIG UUID":           {change(func(r *mps.Request) { r.UUID = "MIG-1" }), "UUID of GPU"},
		"path in device":     {change(func(r *mps.Request) { r.Device = "../../etc" }), "device name"},
		"share as device":    {change(func(r *mps.Request) { r.Device += "-mps" }), "device name"},
		"capitals in device": {change(func(r *mps.Request) { r.Device = "gpu-0000-1B-00-0" }), "device name"},
		"other address":      {change(func(r *mps.Request) { r.PCI.Bus = 2 }), "is not at"},
		"no shared memory":   {change(func(r *mps.Request) { r.Settings.SharedMemory = 0 }), "shared memory"},
		"percentage":         {change(func(r *mps.Request) { r.Settings.ActiveThreadPercentage = 101 }), "percentage"},
		"no memory at all":   {change(func(r *mps.Request) { r.Settings.PinnedMemory = 4096 }), "pinned memory"},
	}
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		for name, tt := range tests {
			if _, err := s.Ensure(t.Context(), tt.request); !errors.Is(err, errInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want an error with %q", name, err, tt.want)
			}
		}
		if entries, _ := os.ReadDir(config.Dir); len(entries) != 1 || h.starts > 0 {
			t.Errorf("%v was made", entries)
		}
	})
}

func TestEnsure_ReplacedGPU(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, _ Config) {
		ensure(t, s, requestFor("a", 1))
		other := requestFor("b", 1)
		other.UUID = "GPU-ffff"
		if _, err := s.Ensure(t.Context(), other); !errors.Is(err, errConflict) || !strings.Contains(err.Error(), "was the GPU replaced?") {
			t.Errorf("got %v", err)
		}
		release(t, s, requestFor("a", 1))
		ensure(t, s, other)
	})
}

// A supervisor is asked to end while it stops a daemon: the stop is completed, as no other supervisor may follow.
func TestRelease_WhileEnding(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		a := requestFor("a", 1)
		ensure(t, s, a)
		h.onStep(func(what string) error {
			if what == "before asking quit" {
				go h.stop()
				synctest.Wait()
			}
			return nil
		})
		began := time.Now()
		release(t, s, a)
		if took := time.Since(began); took != 0 {
			t.Errorf("the stop took %s", took)
		}
		h.wantNothingLeft(t, config)
	})
}
