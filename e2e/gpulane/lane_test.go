// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bufio"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// maxSize is what the directory may have, in bytes.
const maxSize = 62 << 20

// laneTimeout bounds a run on a simulated node, which takes seconds.
const laneTimeout = 5 * time.Minute

// TestLane builds the directory as make gpu-lane does and runs it on simulated nodes.
func TestLane(t *testing.T) {
	if os.Getenv("CLEAVE_E2E") != "1" {
		t.Skip("CLEAVE_E2E=1 runs it, as root, after make build")
	}
	b := &bed{bin: "../../bin", directory: t.TempDir(), cuda: map[string]string{}}
	command(t, "make", "-C", "../..", "gpu-lane-dir", "GPU_LANE="+b.directory)
	for _, lax := range []string{"", "memory", "cores"} {
		b.cuda[lax] = filepath.Join(t.TempDir(), "libcuda.so")
		command(t, "go", "build", "-buildmode=c-shared", "-ldflags", "-X main.lax="+lax, "-o", b.cuda[lax], "./testdata/fakecuda")
	}
	t.Run("directory", b.testDirectory)
	t.Run("no GPU", b.testNoGPU)
	t.Run("stub", b.testStub)
	t.Run("CUDA", b.testCUDA)
	t.Run("lax memory", func(t *testing.T) { b.testLax(t, "memory", "memory over", "defaults hold") })
	t.Run("lax cores", func(t *testing.T) { b.testLax(t, "cores", "cores reported", "cores hold", "defaults hold") })
	t.Run("changed mode", b.testChangedMode)
	t.Run("daemon that fails", b.testDaemonFails)
	t.Run("interrupted", b.testInterrupted)
}

// testDirectory looks whether the directory can be carried to where there is no Go: few files, programs that need a C library
// and nothing else.
func (b *bed) testDirectory(t *testing.T) {
	entries, err := os.ReadDir(b.directory)
	must(t, err)
	var names []string
	size := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		names = append(names, e.Name())
		size += info.Size()
	}
	if want := "cleave-node.gz cleave.gz cuda-probe gpu-lane nvml-probe"; strings.Join(names, " ") != want {
		t.Errorf("the directory holds %v, want %s", names, want)
	}
	if size >= maxSize {
		t.Errorf("the directory has %d MiB, which is too much to carry", size>>20)
	}
	unpacked := t.TempDir()
	cleave, cleaveNode := filepath.Join(unpacked, "cleave"), filepath.Join(unpacked, "cleave-node")
	must(t, unpack(filepath.Join(b.directory, "cleave.gz"), cleave))
	must(t, unpack(filepath.Join(b.directory, "cleave-node.gz"), cleaveNode))
	for _, path := range []string{cleave, cleaveNode, filepath.Join(b.directory, "gpu-lane"), filepath.Join(b.directory, "cuda-probe"), filepath.Join(b.directory, "nvml-probe")} {
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
	must(t, err)
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
		"cores reported":          "25% are 34 (attribute 34, affinity 34) and 50% are 66",
		"memory over":             "small got 3776 MiB in all, then CUDA_ERROR_OUT_OF_MEMORY; the large one's kernel ran",
		"second process":          "held 3072 and 3072 MiB",
		"raised limits":           "(the default counts)",
		"limit of an unknown GPU": "got 6144 MiB (its own counts)",
		"cores hold":              "10.0 ms on all",
		"defaults hold":           "it has 66 of 132 multiprocessors",
		"seen from outside":       "server ",
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
	must(t, errors.Join(err, c.Start()))
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
		must(t, c.Process.Signal(syscall.SIGTERM))
	})
}
