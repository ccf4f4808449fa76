// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// rewrite changes the record of a GPU as a test likes.
func rewrite(t *testing.T, path string, change func(*record)) {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	var r record
	must(t, json.Unmarshal(data, &r))
	change(&r)
	if data, err = json.Marshal(r); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(path, data, 0o600))
}

// A life ends with claim a on GPU 1 and claim other on GPU 2; something happens to the record of GPU 1, or to its daemon.
func TestRecover_Records(t *testing.T) {
	tests := map[string]struct {
		happens func(t *testing.T, h *fakeHost, record string)
		claims  []types.UID // of GPU 1 after
		events  []mps.EventKind
		aside   bool
	}{
		"nothing": {func(*testing.T, *fakeHost, string) {}, []types.UID{"a"}, nil, false},
		"the daemon dies": {func(_ *testing.T, h *fakeHost, _ string) { h.kill("gpu-0000-01-00-0") },
			[]types.UID{"a"}, []mps.EventKind{mps.DaemonLost, mps.DaemonRestarted}, false},
		"the daemon does not answer": {func(_ *testing.T, h *fakeHost, _ string) {
			for _, p := range h.processes {
				p.ready = p.gpu != "gpu-0000-01-00-0"
			}
		}, []types.UID{"a"}, []mps.EventKind{mps.DaemonLost, mps.DaemonRestarted}, false},
		"another process has its id": {func(t *testing.T, _ *fakeHost, path string) {
			rewrite(t, path, func(r *record) { r.Daemon.Start++ })
		}, []types.UID{"a"}, []mps.EventKind{mps.DaemonLost, mps.DaemonRestarted}, false},
		"the node is rebooted": {func(t *testing.T, h *fakeHost, path string) {
			h.kill("gpu-0000-01-00-0")
			delete(h.modes, requestFor("", 1).PCI)
			rewrite(t, path, func(r *record) { r.Boot = "boot-0" })
		}, nil, nil, false},
		"a first start was under way": {func(t *testing.T, _ *fakeHost, path string) {
			rewrite(t, path, func(r *record) { r.Phase = starting })
		}, nil, nil, false},
		"a restart was under way": {func(t *testing.T, h *fakeHost, path string) {
			h.kill("gpu-0000-01-00-0")
			rewrite(t, path, func(r *record) { r.Phase, r.Lost, r.Daemon = starting, r.Claims, nil })
		}, []types.UID{"a"}, []mps.EventKind{mps.DaemonRestarted}, false},
		"the last release was under way": {func(t *testing.T, _ *fakeHost, path string) {
			rewrite(t, path, func(r *record) { r.Phase, r.Claims = stopping, nil })
		}, nil, nil, false},
		"the record is truncated": {func(t *testing.T, _ *fakeHost, path string) {
			must(t, os.Truncate(path, 20))
		}, nil, nil, true},
		"a newer release wrote it": {func(t *testing.T, _ *fakeHost, path string) {
			rewrite(t, path, func(r *record) { r.Version++ })
		}, nil, nil, true},
		"the record is of another GPU": {func(t *testing.T, _ *fakeHost, path string) {
			rewrite(t, path, func(r *record) { r.Device, r.PCI = "gpu-0000-02-00-0", "0000:02:00.0" })
		}, nil, nil, true},
		"the record is a directory": {func(t *testing.T, _ *fakeHost, path string) {
			must(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
		}, nil, nil, true},
		"a later release added a field": {func(t *testing.T, _ *fakeHost, path string) {
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, bytes.Replace(data, []byte(`{"version"`), []byte(`{"later":{"x":1},"version"`), 1), 0o600)
			}
			must(t, err)
		}, []types.UID{"a"}, nil, false},
		"the record is gone": {func(t *testing.T, _ *fakeHost, path string) {
			must(t, os.Remove(path))
		}, nil, nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			onFakeHost(t, func(t *testing.T, s *Supervisor, h *fakeHost, config Config) {
				a, other := requestFor("a", 1), requestFor("other", 2)
				ensure(t, s, a)
				ensure(t, s, other)
				h.stop()
				path := recordOf(config.Dir, a.Device)
				tt.happens(t, h, path)
				s = h.start(t, config)
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
				wantClaims(t, s, append(tt.claims, "other")...)
				events := s.reports.watch()
				defer s.reports.leave(events)
				var kinds []mps.EventKind
				for range len(events) {
					kinds = append(kinds, (<-events).Kind)
				}
				equal(t, "events", tt.events, kinds)
				if _, err := os.Lstat(filepath.Join(config.Dir, stateDir, "corrupt", filepath.Base(path))); (err == nil) != tt.aside {
					t.Errorf("set aside: %v, want %t", err, tt.aside)
				}
				release(t, s, a)
				release(t, s, other)
				h.wantNothingLeft(t, config)
			})
		})
	}
}

func TestReports(t *testing.T) {
	config := testConfig(t)
	r := newReports(store.Disk{}, config.Dir, "boot-1")
	r.load(t.Context())
	for i := range maxReports + 10 {
		r.add(t.Context(), mps.Event{Device: fmt.Sprint(i), Kind: mps.DaemonLost})
	}
	first := r.watch()
	if e := <-first; e.Device != "10" || len(first) != maxReports-1 {
		t.Errorf("got event %s and %d more, want the newest %d", e.Device, len(first), maxReports)
	}
	r.leave(first)
	second := r.watch()
	for range maxReports - 1 {
		r.acknowledge(t.Context(), (<-second).ID)
	}
	last := <-second
	r.leave(second)
	r.acknowledge(t.Context(), "unknown")
	r = newReports(store.Disk{}, config.Dir, "boot-1")
	r.load(t.Context())
	third := r.watch()
	if diff := cmp.Diff([]report{last}, []report{<-third}); diff != "" || len(third) > 0 {
		t.Errorf("in the next life, %d more (-want +got):\n%s", len(third), diff)
	}
	// One that is slow is disconnected, and gets what it missed when it comes again.
	for i := 0; ; i++ {
		r.add(t.Context(), mps.Event{Device: fmt.Sprint(i)})
		if len(r.watchers) == 0 {
			break
		}
	}
	if len(r.watch()) != maxReports {
		t.Error("a watcher that came again does not get what is pending")
	}
	for boot, content := range map[string]string{"boot-2": "", "boot-1": "{"} {
		if content != "" {
			must(t, os.WriteFile(filepath.Join(config.Dir, reportsFile), []byte(content), 0o600))
		}
		r = newReports(store.Disk{}, config.Dir, boot)
		if r.load(t.Context()); len(r.pending) > 0 {
			t.Errorf("%s, %q: %d events", boot, content, len(r.pending))
		}
	}
}

// The first format, as it is on disk.
func TestRecover_FirstFormat(t *testing.T) {
	onFakeHost(t, func(t *testing.T, s *Supervisor, _ *fakeHost, config Config) {
		for path, data := range map[string]string{
			recordOf(config.Dir, "gpu-0000-01-00-0"): `{"version":1,"boot":"boot-1","device":"gpu-0000-01-00-0","pci":"0000:01:00.0","uuid":"` + testUUID +
				`","phase":"running","generation":3,"settings":{"sharedMemory":67108864},"claims":["a"],"owners":{"a":"gpu.cleave.dev"},"previousComputeMode":0,"daemon":{"pid":7,"start":70}}`,
			filepath.Join(config.Dir, reportsFile): `{"version":1,"boot":"boot-1","pending":[{"id":"X","Device":"gpu-0000-01-00-0","Kind":"DaemonLost","Claims":["a"],"Message":"m","Time":"2026-01-02T03:04:05Z"}]}`,
		} {
			must(t, os.WriteFile(path, []byte(data), 0o600))
		}
		r, err := s.records.Read("gpu-0000-01-00-0")
		mode := 0
		want := &record{
			Version: 1, Boot: "boot-1", Device: "gpu-0000-01-00-0", PCI: "0000:01:00.0", UUID: testUUID, Phase: running, Generation: 3,
			Settings: mps.Settings{SharedMemory: 64 << 20}, Claims: []types.UID{"a"}, Owners: map[types.UID]string{"a": "gpu.cleave.dev"}, PreviousMode: &mode, Daemon: &ProcessID{PID: 7, Start: 70},
		}
		if diff := cmp.Diff(want, r); diff != "" || err != nil {
			t.Errorf("%v, record (-want +got):\n%s", err, diff)
		}
		if s.reports.load(t.Context()); len(s.reports.pending) != 1 || s.reports.pending[0].Kind != mps.DaemonLost || s.reports.pending[0].ID != "X" {
			t.Errorf("events %+v", s.reports.pending)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	const device = "gpu-0000-01-00-0"
	good := record{
		Version: recordVersion, Boot: "b", Device: device, PCI: "0000:01:00.0", UUID: testUUID, Phase: running, Generation: 1,
		Settings: mps.Settings{SharedMemory: 1}, Claims: []types.UID{"a", "b"}, Daemon: &ProcessID{PID: 7, Start: 1},
	}
	data, err := json.Marshal(good)
	must(f, err)
	if r, err := recordFormat.Decode(data); err != nil || !cmp.Equal(*r, good) {
		f.Fatalf("got %+v, %v", r, err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(strings.Replace(string(data), `"a","b"`, `"b","a"`, 1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := recordFormat.Decode(data)
		if err != nil {
			return
		}
		if r.pci().DeviceName() != r.Device || r.Daemon != nil && r.Daemon.PID <= 1 || r.Phase == running && r.Daemon == nil {
			t.Errorf("accepted %+v", r)
		}
		r.add("c", testOwner)
		if !r.has("c") {
			t.Errorf("claims %q", r.Claims)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("100.0\n")
	f.Add("4096M")
	f.Add("12 (a) b) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 77 1 1")
	f.Add(`36 35 98:0 /m1 /m\0402 rw,noatime master:1 - tmpfs cleave-mps rw,size=1`)
	f.Fuzz(func(t *testing.T, s string) {
		if p, ok := parsePercentage(s); ok && !(p >= 0 && p <= 100) {
			t.Errorf("%q is %g percent", s, p)
		}
		if n, unit, ok := parseMemory(s); ok && (n < 0 || unit < 1) {
			t.Errorf("%q is %d MiB", s, n)
		}
		_, _ = parseStart([]byte(s))
		_ = sharedMounts(s)
	})
}

func TestParse(t *testing.T) {
	if start, err := parseStart([]byte("12 (a) b) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 77 1 1")); start != 77 || err != nil {
		t.Errorf("got %d, %v, want 77", start, err)
	}
	equal(t, "mounts", []string{"/m 2"}, sharedMounts("36 35 98:0 /m1 /m\\0402 rw - tmpfs cleave-mps rw\n37 35 98:0 / /x rw - tmpfs tmpfs rw\n"))
	for answer, want := range map[string]int64{"4G": 4096, "4096M": 4096, "4096 MB\n": 4096, "10MiB": 10, "": -1, "4": -1, "4T": -1, "-4G": -1} {
		got, _, ok := parseMemory(answer)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: got %d, %t", answer, got, ok)
		}
	}
	for answer, want := range map[string]bool{"100.0": true, "words\n40.5\n": true, "": false, "words": false, "NaN": false, "101": false} {
		if _, ok := parsePercentage(answer); ok != want {
			t.Errorf("%q: got %t", answer, ok)
		}
	}
}
