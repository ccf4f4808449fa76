// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

// fakeFigures are those of one claim.
type fakeFigures struct {
	used   map[inspect.UsedKey]inspect.Used
	advice *sizing.Advice
	err    error
	asked  int
}

func (f *fakeFigures) Used(context.Context) (map[inspect.UsedKey]inspect.Used, error) {
	f.asked++
	return f.used, f.err
}

func (f *fakeFigures) Advise(context.Context) (*sizing.Advice, error) { return f.advice, f.err }

// idleFigures are of a claim that has not used its device for a day.
func idleFigures(key, device string) *fakeFigures {
	memory, sm, at := int64(512<<20), 0.002, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return &fakeFigures{
		used: map[inspect.UsedKey]inspect.Used{{Claim: key, Device: device}: {MemoryBytes: &memory, SMActive: &sm, LastActive: &at}},
		advice: &sizing.Advice{GPUs: 8, WholeNow: 1, WholeThen: 3, Workloads: []sizing.Workload{{Namespace: "dev", Workload: "Deployment/a", Claims: 2,
			Asked: sizing.Device{Shape: "gpu"}, Suffices: &sizing.Device{Shape: "1g.10gb"}, Verdict: sizing.Smaller}}},
	}
}

// answered has a server whose figures were asked for once.
func answered(ctx context.Context, t *testing.T, f Figures, paths ...string) *Server {
	t.Helper()
	source := newFakeSource(busyShot(3))
	view := busyView("gpu-a")
	view.GPUs[0].Shapes[0].Claims[0].Claim, view.GPUs[0].Shapes[0].Device = "dev/a", "gpu-1-mig-19-0"
	source.views["gpu-a"] = view
	s := newServer(t, source, Config{Figures: f})
	for _, path := range paths {
		get(s, path)
	}
	go s.pages.figures.used.run(ctx)
	go s.pages.figures.advice.run(ctx)
	synctest.Wait()
	return s
}

func TestFigures_OnPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		s := answered(ctx, t, idleFigures("dev/a", "gpu-1-mig-19-0"), "/claims", "/advice")
		for path, want := range map[string]string{
			"/claims":              "idle ",
			"/claims?q=is:idle":    "1 of 3 claims",
			"/claims/dev/a":        "512 MiB, idle since 2026-03-01 12:00 UTC",
			"/nodes/gpu-a":         "512 MiB, idle since 2026-03-01 12:00 UTC",
			"/advice":              "Now 1 of 8 GPUs are free and whole, 3 if all of this were followed.",
			"/claims?q=is:pending": "2 of 3 claims",
		} {
			body := get(s, path).Body.String()
			if !strings.Contains(body, want) {
				t.Errorf("%s does not have %q:\n%s", path, want, body)
			}
			if !strings.Contains(body, "advice") {
				t.Errorf("%s has no link to the advice", path)
			}
			walk(t, body, func(n *html.Node) { checkElement(t, path, n) })
		}
		if body := get(s, "/advice").Body.String(); !strings.Contains(body, "1g.10gb") || !strings.Contains(body, "Would do") {
			t.Errorf("no workload: %s", body)
		}
	})
}

// Without figures there is neither the page nor a link to it, nor an empty column.
func TestFigures_None(t *testing.T) {
	source := newFakeSource(busyShot(3))
	source.views["gpu-a"] = busyView("gpu-a")
	s := newServer(t, source, Config{})
	if got := get(s, "/advice").Code; got != http.StatusNotFound {
		t.Errorf("/advice: %d", got)
	}
	for _, path := range []string{"/", "/claims", "/claims/dev/a", "/nodes/gpu-a"} {
		if body := get(s, path).Body.String(); strings.Contains(body, "advice") || strings.Contains(body, "Uses") {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// A Prometheus that is away is said, is not asked for every page, and what was known before is shown no longer.
func TestFigures_Away(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		f := idleFigures("dev/a", "gpu-1-mig-19-0")
		s := answered(ctx, t, f, "/claims")
		f.used, f.err = nil, errors.New("ask Prometheus: refused")
		<-time.After(usedEvery)
		for range 10 {
			get(s, "/claims")
			synctest.Wait()
		}
		body := get(s, "/claims/dev/a").Body.String()
		if !strings.Contains(body, "What claims use is not known: ask Prometheus: refused") || strings.Contains(body, "idle since") {
			t.Errorf("got %s", body)
		}
		if f.asked != 2 {
			t.Errorf("asked %d times in %s, want 2", f.asked, usedEvery)
		}
		if body := get(s, "/advice").Body.String(); !strings.Contains(body, "are being read") {
			t.Errorf("got %s", body)
		}
		synctest.Wait()
		if body := get(s, "/advice").Body.String(); !strings.Contains(body, "There is no advice: ask Prometheus: refused") {
			t.Errorf("got %s", body)
		}
	})
}
