// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/sim"
)

func TestParseScript(t *testing.T) {
	phases := cmp.AllowUnexported(phase{})
	for script, want := range map[string][]phase{
		"idle":  {{}},
		"sm 40": {{load: sim.Load{SM: 40}}},
		"sm 40, dram 20, memory 6Gi for 30s; idle for 20s;sm 90": {
			{sim.Load{SM: 40, DRAM: 20}, 6 << 30, 30 * time.Second}, {sim.Load{}, 6 << 30, 20 * time.Second}, {sim.Load{SM: 90}, 6 << 30, 0},
		},
		" memory 512Mi for 1m30s ; memory 2G, sm 1 ": {{sim.Load{}, 512 << 20, 90 * time.Second}, {sim.Load{SM: 1}, 2 << 30, 0}},
	} {
		got, err := parseScript(script)
		if diff := cmp.Diff(want, got, phases); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", script, err, diff)
		}
	}
	for script, says := range map[string]string{
		"": `phase "": want idle`, "sm 101": "sm 101 is not a percent", "sm -1": "not a percent", "sm x": "not a percent", "burn 3": "not burn",
		"sm 40 for 30": `"30" is no time`, "sm 40 for -1s": "no time", "sm 40; idle": "phase 1 has no time", "memory 6X": "6X", "sm 4 5": `not "sm 4 5"`,
		"sm 40 for 1s;": `phase "": want idle`,
	} {
		if got, err := parseScript(script); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, %v; the error is to say %q", script, got, err, says)
		}
	}
}

// TestPlay: each phase lasts as long as it says, the last one without a time until the end, and a lost GPU ends all.
func TestPlay(t *testing.T) {
	script := []phase{{load: sim.Load{SM: 40}, lasts: 30 * time.Second}, {lasts: 20 * time.Second}}
	for name, tt := range map[string]struct {
		last    []phase
		ends    time.Duration // the context, 0 for never
		lost    time.Duration // the GPU, 0 for never
		begins  []time.Duration
		took    time.Duration
		wantErr bool
	}{
		"to its end":     {begins: []time.Duration{0, 30 * time.Second}, took: 50 * time.Second},
		"until a signal": {last: []phase{{}}, ends: time.Hour, begins: []time.Duration{0, 30 * time.Second, 50 * time.Second}, took: time.Hour},
		"a signal":       {ends: 31 * time.Second, begins: []time.Duration{0, 30 * time.Second}, took: 31 * time.Second},
		"a lost GPU":     {lost: 9500 * time.Millisecond, begins: []time.Duration{0}, took: 10 * time.Second, wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.ends > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.ends)
					defer cancel()
				}
				start := time.Now()
				var begins []time.Duration
				err := play(ctx, append(script, tt.last...), func(phase) error {
					begins = append(begins, time.Since(start))
					return nil
				}, func() error {
					if tt.lost > 0 && time.Since(start) >= tt.lost {
						return errors.New("lost")
					}
					return nil
				})
				if diff := cmp.Diff(tt.begins, begins); diff != "" || time.Since(start) != tt.took || (err != nil) != tt.wantErr {
					t.Errorf("took %s, want %s; error %v; phases began (-want +got):\n%s", time.Since(start), tt.took, err, diff)
				}
			})
		})
	}
}

// printer calls a function for what is printed.
type printer func(string)

func (p printer) Write(text []byte) (int, error) {
	p(string(text))
	return len(text), nil
}

// TestBurn: the GPU whose device file is there is busy while the program runs, and not after.
func TestBurn(t *testing.T) {
	root, container := makeNode(t, "hgx-h100"), t.TempDir()
	file := filepath.Join(container, "dev", "nvidia5") // index 4
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	n, err := sim.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := n.Clients().Usable(container)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var during []sim.Client
	was := stdout
	defer func() { stdout = was }()
	stdout = printer(func(string) {
		during = status(t, root).GPUs[4].Clients
		cancel()
	})
	if err := burn(ctx, n, devices, []phase{{load: sim.Load{SM: 40, DRAM: 20}, memory: 6 << 30}}); err != nil {
		t.Fatal(err)
	}
	want := []sim.Client{{
		PID: os.Getpid(), Name: "nvml-sim", Memory: 6 << 30, GPUInstance: -1, ComputeInstance: -1, Held: true, Load: &sim.Load{SM: 40, DRAM: 20},
	}}
	if diff := cmp.Diff(want, during); diff != "" {
		t.Errorf("meanwhile (-want +got):\n%s", diff)
	}
	if after := status(t, root).GPUs[4].Clients; len(after) > 0 {
		t.Errorf("afterwards there are %v", after)
	}
}

func TestBurn_Refused(t *testing.T) {
	root := makeNode(t, "hgx-h100")
	for script, want := range map[string]struct {
		code int
		says string
	}{"sm 40": {exitFailed, "no CUDA-capable device"}, "sm 400": {exitUsage, "sm 400 is not a percent"}} {
		if out, code := run(t, "burn", "--root", root, "--files", t.TempDir(), "--script", script); code != want.code || !strings.Contains(out, want.says) {
			t.Errorf("%s: code %d: %s", script, code, out)
		}
	}
}
