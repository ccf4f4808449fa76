// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// bed has the lane's directory and what it runs on.
type bed struct {
	bin, directory string
	// cuda are libraries for simulated nodes, by the limit that they do not keep to.
	cuda map[string]string
}

// must ends a test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command runs a program that has to go well.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// node creates a simulated node whose libcuda is a stub, or a library of the bed.
func (b *bed) node(t *testing.T, library string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	command(t, filepath.Join(b.bin, "nvml-sim"), "create", "--node", "hgx-h100", "--root", root, "--seed", root)
	if library != "" {
		found, err := filepath.Glob(filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.*.*"))
		if err != nil || len(found) != 1 {
			t.Fatalf("the node's libcuda: %v, %v", found, err)
		}
		data, err := os.ReadFile(library)
		must(t, errors.Join(err, os.WriteFile(found[0], data, 0o755)))
	}
	return root
}

// command of a run of the lane.
func (b *bed) command(t *testing.T, root, out string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), laneTimeout)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, filepath.Join(b.directory, "gpu-lane"), "--driver-root", root, "--out", out)
}

// run runs the lane and gives its report and exit code, and fails if anything is left.
func (b *bed) run(t *testing.T, root string) (*Report, int) {
	t.Helper()
	out := t.TempDir()
	c := b.command(t, root, out)
	text, err := c.CombinedOutput()
	t.Logf("%s", text)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	nothingLeft(t, root)
	return readReport(t, out), c.ProcessState.ExitCode()
}

func readReport(t *testing.T, out string) *Report {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(out, "report.json"))
	must(t, err)
	var r Report
	must(t, json.Unmarshal(data, &r))
	return &r
}

// nothingLeft fails if a run has left processes, mounts or directories. What it ran has the directory it worked in in its
// command line or its environment.
func nothingLeft(t *testing.T, root string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(root, "tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directories are left in the driver root: %v", err)
	}
	left, err := filepath.Glob("/tmp/gpu-lane-*")
	if err != nil || len(left) > 0 {
		t.Errorf("directories are left: %v, %v", left, err)
	}
	mounts, err := mountsUnder("/tmp")
	must(t, err)
	if slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(m, "/tmp/gpu-lane-") }) {
		t.Errorf("mounts are left: %v", mounts)
	}
	waitFor(t, noProcess) // one that was killed may not have ended yet
}

// noProcess is nil when no process of a run of the lane is there.
func noProcess() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // not every process shows it
		if err == nil && bytes.Contains(append(line, environment...), []byte("/tmp/gpu-lane-")) {
			return fmt.Errorf("process %s is left: %q", e.Name(), line)
		}
	}
	return nil
}

// outcomes gives the status of every check by its name.
func outcomes(r *Report) map[string]Status {
	all := map[string]Status{}
	for _, c := range r.Checks {
		all[c.Part+": "+c.Name] = c.Status
	}
	return all
}

// expect compares the outcomes with those that are wanted.
func expect(t *testing.T, r *Report, want map[string]Status) {
	t.Helper()
	got := outcomes(r)
	for name, status := range want {
		if got[name] != status {
			t.Errorf("%s: %q, want %q", name, got[name], status)
		}
	}
	for name, status := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %q, and nobody expects it", name, status)
		}
	}
}

// clean are the outcomes on a simulated node without CUDA.
func clean() map[string]Status {
	return map[string]Status{
		"machine: found": Note, "machine: gpus": Pass,
		"discovery: slices": Pass, "discovery: inspect": Pass, "discovery: partitions": Pass, "discovery: model": Note, "discovery: memory limits": Note,
		"discovery: nvidia-smi": Skip, // the simulated one is not asked for numbers
		"cdi: write":            Pass, "cdi: resolve": Pass, "cdi: files": Pass,
		"mps: machine": Pass, "mps: cuda": Skip, "mps: supervisor": Pass, "mps: daemon": Pass, "mps: daemon's words": Note, "mps: release": Pass,
		"mps: supervisor stops": Pass, "mps: nothing left": Pass,
		"guard: unchanged": Pass,
	}
}

// cleanWithCUDA are the outcomes where CUDA programs run.
func cleanWithCUDA() map[string]Status {
	want := clean()
	want["mps: cuda"] = Pass
	for _, name := range []string{"two clients", "cores reported", "memory within", "memory over", "neighbour goes on", "cores hold",
		"daemon with defaults", "defaults hold", "like a container", "another user", "release again"} {
		want["mps: "+name] = Pass
	}
	for _, name := range []string{"seen from outside", "second process", "raised limits", "limit of a second GPU", "limit of an unknown GPU"} {
		want["mps: "+name] = Note
	}
	return want
}

// daemonStarts is nil when a daemon of a run of the lane is there.
func daemonStarts() error {
	pids, err := processesOf("/tmp/gpu-lane-")
	if err == nil && len(pids) == 0 {
		err = fs.ErrNotExist
	}
	return err
}

func waitFor(t *testing.T, what func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := what()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(fmt.Errorf("wait: %w", err))
		case <-tick.C:
		}
	}
}
