// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// maxFolder is what the folder may have, in bytes.
const maxFolder = 60 << 20

// laneTimeout bounds a run on a simulated node, which takes seconds.
const laneTimeout = 2 * time.Minute

// TestLane builds the folder as make gpu-lane does and runs it on simulated nodes.
func TestLane(t *testing.T) {
	if os.Getenv("CLEAVE_E2E") != "1" {
		t.Skip("CLEAVE_E2E=1 runs it, as root, after make build")
	}
	b := &bed{bin: "../../bin", folder: t.TempDir(), cuda: map[string]string{}}
	command(t, "make", "-C", "../..", "gpu-lane-folder", "GPU_LANE="+b.folder)
	for _, lax := range []string{"", "memory", "cores"} {
		b.cuda[lax] = filepath.Join(t.TempDir(), "libcuda.so")
		command(t, "go", "build", "-buildmode=c-shared", "-ldflags", "-X main.lax="+lax, "-o", b.cuda[lax], "./testdata/fakecuda")
	}
	t.Run("folder", b.testFolder)
	t.Run("no GPU", b.testNoGPU)
	t.Run("stub", b.testStub)
	t.Run("CUDA", b.testCUDA)
	t.Run("lax memory", func(t *testing.T) { b.testLax(t, "memory", "memory over", "defaults hold") })
	t.Run("lax cores", func(t *testing.T) { b.testLax(t, "cores", "cores told", "cores hold", "defaults hold") })
	t.Run("changed mode", b.testChangedMode)
	t.Run("daemon that fails", b.testDaemonFails)
	t.Run("interrupted", b.testInterrupted)
}

// bed has the lane's folder and what it runs on.
type bed struct {
	bin, folder string
	// cuda are libraries for simulated nodes, by the limit that they do not keep to.
	cuda map[string]string
}

// command runs a program that has to go well.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// node makes a simulated node whose libcuda is a stub, or a library of the bed.
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
		if err := errors.Join(err, os.WriteFile(found[0], data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// command of a run of the lane.
func (b *bed) command(t *testing.T, root, out string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), laneTimeout)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, filepath.Join(b.folder, "gpu-lane"), "--driver-root", root, "--out", out)
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
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// nothingLeft fails if a run has left processes, mounts or folders. What it ran has the folder it worked in in its
// command line or its environment.
func nothingLeft(t *testing.T, root string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(root, "tmp")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folders are left in the driver root: %v", err)
	}
	left, err := filepath.Glob("/tmp/gpu-lane-*")
	if err != nil || len(left) > 0 {
		t.Errorf("folders are left: %v, %v", left, err)
	}
	mounts, err := mountsUnder("/tmp")
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(m, "/tmp/gpu-lane-") }) {
		t.Errorf("mounts are left: %v", mounts)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // not every process shows it
		if err == nil && bytes.Contains(append(line, environment...), []byte("/tmp/gpu-lane-")) {
			t.Errorf("process %s is left: %q", e.Name(), line)
		}
	}
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
	for _, name := range []string{"two clients", "cores told", "memory within", "memory over", "neighbour goes on", "cores hold",
		"daemon with defaults", "defaults hold", "like a container", "another user", "release again"} {
		want["mps: "+name] = Pass
	}
	for _, name := range []string{"seen from outside", "second process", "raised limits"} {
		want["mps: "+name] = Note
	}
	return want
}

// testFolder looks whether the folder can be carried to where there is no Go: few files, programs that need a C library
// and nothing else.
func (b *bed) testFolder(t *testing.T) {
	entries, err := os.ReadDir(b.folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	size := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, e.Name())
		size += info.Size()
	}
	if want := "cleave.gz cuda-probe gpu-lane nvml-probe"; strings.Join(names, " ") != want {
		t.Errorf("the folder holds %v, want %s", names, want)
	}
	if size >= maxFolder {
		t.Errorf("the folder has %d MiB, which is too much to carry", size>>20)
	}
	cleave := filepath.Join(t.TempDir(), "cleave")
	if err := unpack(filepath.Join(b.folder, "cleave.gz"), cleave); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{cleave, filepath.Join(b.folder, "gpu-lane"), filepath.Join(b.folder, "cuda-probe"), filepath.Join(b.folder, "nvml-probe")} {
		needsOnlyC(t, path)
	}
}

func needsOnlyC(t *testing.T, path string) {
	t.Helper()
	program, err := elf.Open(path)
	if err != nil {
		t.Errorf("%s is no program: %v", path, err)
		return
	}
	defer func() { _ = program.Close() }()
	libraries, err := program.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range libraries {
		if !slices.Contains([]string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2"}, l) {
			t.Errorf("%s needs %s", filepath.Base(path), l)
		}
	}
	if program.Section(".symtab") != nil {
		t.Errorf("%s is not stripped", filepath.Base(path))
	}
}

func (b *bed) testNoGPU(t *testing.T) {
	r, code := b.run(t, t.TempDir())
	expect(t, r, map[string]Status{"machine: found": Note, "machine: gpus": Skip})
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func (b *bed) testStub(t *testing.T) {
	r, code := b.run(t, b.node(t, ""))
	expect(t, r, clean())
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func (b *bed) testCUDA(t *testing.T) {
	r, code := b.run(t, b.node(t, b.cuda[""]))
	expect(t, r, cleanWithCUDA())
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for name, want := range map[string]string{
		"cores told":        "25% are 34 (attribute 34, affinity 34) and 50% are 66",
		"memory over":       "small got 3776 MiB in all, then CUDA_ERROR_OUT_OF_MEMORY; the large one's kernel ran",
		"second process":    "held 3072 and 3072 MiB",
		"raised limits":     "(the default counts)",
		"cores hold":        "10.0 ms on all",
		"defaults hold":     "it has 66 of 132 multiprocessors",
		"seen from outside": "server ",
	} {
		if !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Name == name && strings.Contains(c.Detail, want) }) {
			t.Errorf("%s does not say %q", name, want)
		}
	}
}

// testLax runs programs that do not keep to a limit, which the lane has to notice.
func (b *bed) testLax(t *testing.T, lax string, failing ...string) {
	r, code := b.run(t, b.node(t, b.cuda[lax]))
	want := cleanWithCUDA()
	for _, name := range failing {
		want["mps: "+name] = Fail
	}
	expect(t, r, want)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// testChangedMode changes a GPU's compute mode while the lane runs.
func (b *bed) testChangedMode(t *testing.T) {
	root := b.node(t, "")
	out := t.TempDir()
	c := b.command(t, root, out)
	b.meanwhile(t, c, root, "cdi        write", func() {
		libraries := "LD_LIBRARY_PATH=" + filepath.Join(root, "usr/lib/x86_64-linux-gnu")
		command(t, "env", libraries, filepath.Join(root, "usr/bin/nvidia-smi"), "-i", "3", "-c", "EXCLUSIVE_PROCESS")
	})
	want := clean()
	want["guard: unchanged"] = Fail
	expect(t, readReport(t, out), want)
}

// meanwhile runs the lane and does something when it has printed a line; the run has to fail.
func (b *bed) meanwhile(t *testing.T, c *exec.Cmd, root, line string, do func()) {
	t.Helper()
	stdout, err := c.StdoutPipe()
	if err := errors.Join(err, c.Start()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	did := false
	for lines.Scan() {
		t.Log(lines.Text())
		if !did && strings.HasPrefix(lines.Text(), line) {
			did = true
			do()
		}
	}
	_, _ = io.Copy(io.Discard, stdout)
	err = c.Wait()
	if exit := (*exec.ExitError)(nil); !did || !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%q was met: %t, end of the run: %v", line, did, err)
	}
	nothingLeft(t, root)
}

func (b *bed) testDaemonFails(t *testing.T) {
	root := b.node(t, b.cuda[""])
	command(t, filepath.Join(b.bin, "nvml-sim"), "fault", "--root", root, "--fail", "mpsControlStart", "TIMEOUT")
	r, code := b.run(t, root)
	got := outcomes(r)
	for name, want := range map[string]Status{
		"mps: daemon": Fail, "mps: release": Pass, "mps: daemon with defaults": Fail, "mps: release again": Pass, "mps: nothing left": Pass, "guard: unchanged": Pass,
	} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// testInterrupted ends the lane while a daemon starts.
func (b *bed) testInterrupted(t *testing.T) {
	root := b.node(t, b.cuda[""])
	command(t, filepath.Join(b.bin, "nvml-sim"), "fault", "--root", root, "--slow", "2s", "mpsControlStart")
	c := b.command(t, root, t.TempDir())
	b.meanwhile(t, c, root, "mps        supervisor", func() {
		waitFor(t, daemonStarts)
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	})
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
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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
