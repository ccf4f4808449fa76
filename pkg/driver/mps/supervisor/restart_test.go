// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
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
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// next waits for the next event of a watch.
func next(t *testing.T, events <-chan report) report {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(time.Minute):
		t.Fatal("no event")
		return report{}
	}
}

// noDaemonStarts fails each start of a daemon.
func noDaemonStarts(what string) error {
	if what == "before starting a daemon" {
		return errors.New("broken")
	}
	return nil
}

func TestRestart_LostDaemon(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		a := requestFor("a", 1)
		first := ensure(t, s, a)
		ensure(t, s, requestFor("b", 1))
		events := s.reports.watch()
		defer s.reports.leave(events)
		began := time.Now()
		h.kill(a.Device)
		lost, restarted := next(t, events), next(t, events)
		if took := time.Since(began); took != 0 {
			t.Errorf("took %s", took)
		}
		want := []mps.Event{
			{Device: a.Device, Kind: mps.DaemonLost, Claims: []types.UID{"a", "b"}, Time: began},
			{Device: a.Device, Kind: mps.DaemonRestarted, Claims: []types.UID{"a", "b"}, Time: began},
		}
		got := []mps.Event{lost.Event, restarted.Event}
		equal(t, "events", want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Message" }, cmp.Ignore()))
		synctest.Wait()
		equal(t, "endpoint", first, ensure(t, s, a))
		equal(t, "generation", uint64(2), s.Status().GPUs[0].Generation)
		release(t, s, a)
		release(t, s, requestFor("b", 1))
		h.wantNothingLeft(t, config)
	})
}

// A daemon that cannot be started is tried with growing waits, given up with one report, and still tried.
func TestRestart_GivenUp(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		a := requestFor("a", 1)
		ensure(t, s, a)
		events := s.reports.watch()
		defer s.reports.leave(events)
		broken := errors.New("broken")
		var tries []time.Duration
		var began time.Time
		h.onStep(func(what string) error {
			if what == "before starting a daemon" {
				h.locked(func() { tries = append(tries, time.Since(began)) })
				return broken
			}
			return nil
		})
		began = time.Now()
		h.kill(a.Device)
		kinds := []mps.EventKind{next(t, events).Kind}
		failed := next(t, events)
		kinds = append(kinds, failed.Kind)
		equal(t, "events", []mps.EventKind{mps.DaemonLost, mps.DaemonFailed}, kinds)
		if !strings.Contains(failed.Message, "broken") {
			t.Errorf("message %q does not name the cause", failed.Message)
		}
		time.Sleep(2*time.Minute + time.Second) //nolint:forbidigo // in a bubble
		seconds := func(n time.Duration) time.Duration { return n * time.Second }
		var got []time.Duration
		h.locked(func() { got = slices.Clone(tries) })
		equal(t, "tries", []time.Duration{0, seconds(1), seconds(3), seconds(7), seconds(15), seconds(75), seconds(135)}, got)
		if st := s.Status().GPUs[0]; st.State != mps.Failed || !strings.Contains(st.Message, "broken") {
			t.Errorf("status %+v", st)
		}
		// Another claim tries at once, and does not stay if that fails.
		if _, err := s.Ensure(t.Context(), requestFor("b", 1)); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
		wantClaims(t, s, "a")
		h.onStep(nil)
		ensure(t, s, requestFor("b", 1))
		if e := next(t, events); e.Kind != mps.DaemonRestarted || !slices.Equal(e.Claims, []types.UID{"a"}) {
			t.Errorf("got %+v, want that a has its daemon again", e)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // in a bubble
		if st := s.Status().GPUs[0]; st.State != mps.Running || st.Message != "" {
			t.Errorf("status %+v", st)
		}
	})
}

// Without a daemon CUDA uses the GPU without MPS: while none can be started, no program may.
func TestRestart_NobodyMeanwhile(t *testing.T) {
	tests := map[string]struct {
		before int
		// meanwhile is what happens while the GPU is closed.
		meanwhile func(h *fakeHost, a mps.Request)
		again     bool // a daemon starts after all
		want      int  // the mode in the end
	}{
		"a daemon runs again":        {again: true},
		"the claims go":              {},
		"prohibited before":          {before: 2, want: 2},
		"an admin takes the default": {meanwhile: func(h *fakeHost, a mps.Request) { delete(h.modes, a.PCI) }},
		"the driver is reloaded":     {meanwhile: func(h *fakeHost, a mps.Request) { delete(h.modes, a.PCI) }, again: true},
	}
	for name, tt := range tests {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, supervisor restarted: %t", name, restarted), func(t *testing.T) {
				onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
					a := requestFor("a", 1)
					h.modes[a.PCI] = tt.before
					ensure(t, s, a)
					h.onStep(noDaemonStarts)
					h.kill(a.Device)
					time.Sleep(500 * time.Millisecond) //nolint:forbidigo // in a bubble
					if got := h.modeOf(a.PCI); got != nvml.ComputeModeProhibited {
						t.Errorf("mode %d without a daemon, want nobody to have the GPU", got)
					}
					if tt.meanwhile != nil {
						h.locked(func() { tt.meanwhile(h, a) })
					}
					if restarted {
						s = h.start(t, config)
					}
					if tt.again {
						h.onStep(nil)
						time.Sleep(slowRestart + time.Second) //nolint:forbidigo // in a bubble
						if got := h.modeOf(a.PCI); got != nvml.ComputeModeExclusive {
							t.Errorf("mode %d with a daemon, want that for MPS", got)
						}
					}
					h.onStep(nil)
					release(t, s, a)
					starts := h.starts
					time.Sleep(time.Hour) //nolint:forbidigo // in a bubble
					if got := h.modeOf(a.PCI); got != tt.want || h.starts != starts {
						t.Errorf("mode %d without claims, want %d; %d restarts, want none", got, tt.want, h.starts-starts)
					}
				})
			})
		}
	}
}

// What was closed is opened by whoever succeeds in the end, also where a claim came and failed in between.
func TestRestart_ClosedAndReleasedWithoutDriver(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
		a, b := requestFor("a", 1), requestFor("b", 1)
		ensure(t, s, a)
		h.onStep(noDaemonStarts)
		h.kill(a.Device)
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // in a bubble
		h.locked(func() { h.noDriver = gpu.ErrDriverNotLoaded })
		if err := s.Release(t.Context(), a.Device, a.Claim); !errors.Is(err, gpu.ErrDriverNotLoaded) {
			t.Errorf("Release() = %v, want %v", err, gpu.ErrDriverNotLoaded)
		}
		if _, err := s.Ensure(t.Context(), b); !errors.Is(err, gpu.ErrDriverNotLoaded) {
			t.Errorf("Ensure() = %v, want %v", err, gpu.ErrDriverNotLoaded)
		}
		h.onStep(nil)
		h.locked(func() { h.noDriver = nil })
		if err := s.Release(t.Context(), b.Device, b.Claim); err != nil {
			t.Error(err)
		}
		go s.CleanUp()
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		h.wantNothingLeft(t, config)
	})
}

// A daemon that starts well and dies soon does not make the supervisor spin, nor does a plugin that asks for it every few seconds.
func TestRestart_DaemonDiesSoon(t *testing.T) {
	for _, asked := range []bool{false, true} {
		t.Run(fmt.Sprintf("asked: %t", asked), func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, _ Config) {
				a := requestFor("a", 1)
				ensure(t, s, a)
				tick := time.NewTicker(100 * time.Millisecond)
				defer tick.Stop()
				for i := range 10 * 60 * 10 { // ten minutes
					<-tick.C
					h.kill(a.Device)
					if asked && i%100 == 50 {
						_, _ = s.Ensure(t.Context(), a)
					}
				}
				if h.starts < 10 || h.starts > 18 {
					t.Errorf("%d starts in ten minutes, want one a minute and the five fast ones", h.starts)
				}
				if !slices.ContainsFunc(s.reports.pending, func(r report) bool { return r.Kind == mps.DaemonFailed }) || len(s.reports.pending) > maxReports {
					t.Errorf("%d reports are kept, want the failure among them", len(s.reports.pending))
				}
			})
		})
	}
}

// A daemon that is lost soon after it was started for a claim is restarted at once, although the one before it was lost often.
func TestRestart_LostAfterEnsure(t *testing.T) {
	for name, released := range map[string]bool{"the claims stay": false, "the claims have gone": true} {
		t.Run(name, func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, _ Config) {
				a, b := requestFor("a", 1), requestFor("b", 1)
				ensure(t, s, a)
				h.onStep(noDaemonStarts)
				h.kill(a.Device)
				time.Sleep(20 * time.Second) //nolint:forbidigo // in a bubble
				h.onStep(nil)
				if released {
					release(t, s, a)
				}
				ensure(t, s, b)
				h.kill(a.Device)
				time.Sleep(time.Second) //nolint:forbidigo // in a bubble
				if st := s.Status().GPUs[0]; st.State != mps.Running {
					t.Errorf("status %+v and compute mode %d a second after the loss, want a daemon that runs", st, h.modeOf(a.PCI))
				}
			})
		})
	}
}

// The last claim goes, but that cannot be recorded. Nobody has lost a daemon that ends then, nor is it restarted.
func TestRelease_NotRecorded(t *testing.T) {
	for name, next := range map[string]func(t *testing.T, s *Supervisor, h *fakeHost, a mps.Request){
		"the daemon ends": func(_ *testing.T, _ *Supervisor, h *fakeHost, a mps.Request) { h.kill(a.Device) },
		"another claim comes": func(t *testing.T, s *Supervisor, _ *fakeHost, a mps.Request) {
			release(t, s, a)
			ensure(t, s, requestFor("b", 1))
		},
		"another claim comes at once": func(t *testing.T, s *Supervisor, _ *fakeHost, _ mps.Request) { ensure(t, s, requestFor("b", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
				a := requestFor("a", 1)
				ensure(t, s, a)
				h.onStep(failStep("before writing", 1))
				wantError(t, s.Release(t.Context(), a.Device, a.Claim), errStep.Error())
				next(t, s, h, a)
				time.Sleep(time.Second) //nolint:forbidigo // in a bubble
				if len(s.reports.pending) > 0 {
					t.Errorf("reported %+v", s.reports.pending)
				}
				release(t, s, requestFor("b", 1))
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
				h.wantNothingLeft(t, config)
			})
		})
	}
}

// A server that stays in state FAULT is replaced, with its daemon. Nothing else that is answered, or not answered, ends one.
func TestRestart_ServerInFault(t *testing.T) {
	const unknown = "Unknown command: get_server_status 77"
	tests := map[string]struct {
		answers []string
		quiet   bool          // the server logs nothing
		want    time.Duration // until it is replaced; zero if it is not
		asked   int
	}{
		"for good":                     {answers: []string{"FAULT"}, want: time.Minute, asked: 21},
		"for good, later":              {answers: []string{"INITIALIZING", "ACTIVE", "FAULT"}, want: 2 * time.Minute, asked: 21},
		"and recovers":                 {answers: []string{"FAULT", "ACTIVE"}, asked: 21},
		"and does not answer":          {answers: []string{"FAULT", "", "FAULT", "", "FAULT", ""}, asked: 37},
		"of an older daemon":           {answers: []string{unknown}, asked: 40},
		"unseen, as nothing is logged": {answers: []string{"ACTIVE"}, quiet: true, asked: 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
				a := requestFor("a", 1)
				e := ensure(t, s, a)
				h.locked(func() { h.statuses[a.Device] = tt.answers })
				go s.CleanUp()
				began, stop := time.Now(), time.NewTicker(29*time.Second)
				defer stop.Stop()
				for time.Since(began) < 10*time.Minute-time.Second {
					if !tt.quiet {
						log, err := os.OpenFile(filepath.Join(e.LogDir, serverLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
						must(t, err)
						_, err = log.WriteString("New client\n")
						must(t, errors.Join(err, log.Close()))
					}
					<-stop.C
				}
				type event struct {
					Kind  mps.EventKind
					After time.Duration
				}
				var want, got []event
				if tt.want > 0 {
					want = []event{{mps.DaemonLost, tt.want}, {mps.DaemonRestarted, tt.want}}
				}
				for _, r := range s.reports.pending {
					got = append(got, event{r.Kind, r.Time.Sub(began)})
				}
				equal(t, "events", want, got)
				h.locked(func() { equal(t, "questions", tt.asked, h.asked) })
				release(t, s, a)
				h.wantNothingLeft(t, config)
			})
		})
	}
}
