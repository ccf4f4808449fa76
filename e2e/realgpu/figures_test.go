// SPDX-License-Identifier: Apache-2.0

package realgpu

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// contextMemory is what CUDA needs on the GPU beside what a program takes.
const contextMemory = 3 * gib / 2

// figures are the plugin's, of one pod, by name without "cleave_claim_"; sources those of its activity.
type figures map[string]float64

func (f figures) String() string { return fmt.Sprintf("%v", map[string]float64(f)) }

func (b *bed) used(ctx context.Context, pod string) (figures, string, error) {
	_, text, err := process.Read(ctx, "http://"+net.JoinHostPort("127.0.0.1", b.metrics)+"/metrics", "")
	if err != nil {
		return nil, "", fmt.Errorf("ask for the plugin's metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, "", fmt.Errorf("read the plugin's metrics: %w", err)
	}
	of, source := figures{}, ""
	for name, family := range families {
		figure, ok := strings.CutPrefix(name, "cleave_claim_")
		for _, m := range family.GetMetric() {
			if !ok || label(m, "pod") != pod {
				continue
			}
			of[figure] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if figure == "sm_active_ratio" {
				source = label(m, "source")
			}
		}
	}
	return of, source, nil
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// waitUsed waits until a pod's figures are right.
func (b *bed) waitUsed(ctx context.Context, t *testing.T, pod, what string, right func(figures, string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	last := ""
	err := workload.Until(ctx, "the figures of "+what, func(ctx context.Context) (bool, string, error) {
		f, source, err := b.used(ctx, pod)
		last = fmt.Sprintf("%s, activity from %q", f, source)
		return right(f, source), last, err
	})
	t.Logf("%s: %s", what, last)
	if err != nil {
		t.Errorf("%v\n%s", err, driverSays(t))
	}
}

// driverSays is what nvidia-smi lists of processes, for whoever reads why figures differ.
func driverSays(t *testing.T) string {
	t.Helper()
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		smi = filepath.Join("/usr/local/nvidia/bin", "nvidia-smi")
	}
	said := ""
	for _, args := range [][]string{{"--query-compute-apps=pid,name,used_memory", "--format=csv"}, {"pmon", "-c", "2", "-s", "um"}, {}} {
		out, err := exec.CommandContext(t.Context(), smi, args...).CombinedOutput()
		said += fmt.Sprintf("nvidia-smi %s: %v\n%s\n", strings.Join(args, " "), err, out)
	}
	return said
}

// between reports whether a figure is known and in a range.
func (f figures) between(name string, low, high float64) bool {
	v, ok := f[name]
	return ok && v >= low && v <= high
}

// using is a command that takes memory, and keeps the GPU busy or waits.
func using(bytes int64, work bool) string {
	then := "busybox sleep 100000"
	if work {
		then = `while true; do echo "work 400000"; done`
	}
	return fmt.Sprintf("{ echo take %d %d; %s; } | /bin/cuda-probe > /tmp/answers & true", bytes, gib/4, then)
}

// TestUsed_WholeGPU compares the plugin's figures of a claim with what its program does.
func TestUsed_WholeGPU(t *testing.T) {
	ctx, b := onGPU(t, 3*time.Minute)
	b.create(ctx, t, "uses", "gpu.cleave.dev", using(8*gib, true))
	if _, err := b.WaitRunning(ctx, namespace, "uses"); err != nil {
		t.Fatal(err)
	}
	memory := func(f figures) bool {
		return f.between("memory_used_bytes", float64(8*gib), float64(8*gib+contextMemory))
	}
	b.waitUsed(ctx, t, "uses", "a busy program with 8 GiB", func(f figures, source string) bool {
		return memory(f) && f.between("sm_active_ratio", .7, 1) && source == "gpm" && f.between("energy_joules_total", 1, 1e6)
	})
	t.Log(driverSays(t))
	b.inPod(ctx, t, "uses", "/bin/busybox", "killall", "cuda-probe")
	b.waitUsed(ctx, t, "uses", "a container whose program has ended", func(f figures, _ string) bool {
		return f.between("memory_used_bytes", 0, 0) && f.between("sm_active_ratio", 0, .01) && f.between("dram_active_ratio", 0, .01)
	})
	began := float64(time.Now().Unix())
	b.waitUsed(ctx, t, "uses", "an idle claim", func(f figures, _ string) bool { return f.between("last_active_timestamp_seconds", 1, began) })
}

// TestUsed_MPS has one share that works beside one that waits.
func TestUsed_MPS(t *testing.T) {
	ctx, b := onGPU(t, 3*time.Minute)
	b.create(ctx, t, "works", "mps.cleave.dev", using(2*gib, true), "cores=25", "memory=4Gi")
	b.create(ctx, t, "waits", "mps.cleave.dev", using(6*gib, false), "cores=50", "memory=8Gi")
	for _, name := range []string{"works", "waits"} {
		if _, err := b.WaitRunning(ctx, namespace, name); err != nil {
			t.Fatal(err)
		}
	}
	b.waitUsed(ctx, t, "works", "an MPS share with 2 GiB that works", func(f figures, _ string) bool {
		return f.between("memory_used_bytes", float64(2*gib), float64(2*gib+contextMemory))
	})
	b.waitUsed(ctx, t, "waits", "an MPS share with 6 GiB that waits", func(f figures, _ string) bool {
		return f.between("memory_used_bytes", float64(6*gib), float64(6*gib+contextMemory))
	})
	for _, name := range []string{"works", "waits"} {
		f, source, err := b.used(ctx, name)
		must(t, err)
		t.Logf("activity of the share that %s: %s, from %q", name, f, source)
		if sm, ok := f["sm_active_ratio"]; ok && (name == "waits" && sm > .05 || name == "works" && sm < .05) {
			t.Errorf("the share that %s has SM activity %v", name, sm)
		}
	}
	t.Log(driverSays(t))
}

// TestUsed_Cost reports what a look costs: it fails only where there are no figures.
func TestUsed_Cost(t *testing.T) {
	ctx, b := onGPU(t, 2*time.Minute)
	plugin := pluginPID(t)
	before := statusOf(t, plugin)
	idle := cpuOver(ctx, t, plugin, 10*time.Second)
	b.create(ctx, t, "costs", "gpu.cleave.dev", using(gib, true))
	if _, err := b.WaitRunning(ctx, namespace, "costs"); err != nil {
		t.Fatal(err)
	}
	b.waitUsed(ctx, t, "costs", "a claim", func(f figures, _ string) bool { return f.between("sm_active_ratio", 0, 1) })
	looks := cpuOver(ctx, t, plugin, 10*time.Second)
	t.Logf("CPU of the plugin in 10 s: %s with nothing allocated, %s with one look a second at one GPU", idle, looks)
	t.Logf("before: %s\nafter: %s", before, statusOf(t, plugin))
}

// pluginPID is the process of the plugin.
func pluginPID(t *testing.T) int {
	t.Helper()
	for _, pid := range pids(t, "cleave-node") {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if slices.Contains(strings.Split(string(command), "\x00"), "kubelet-plugin") {
			return pid
		}
	}
	t.Fatal("no plugin runs")
	return 0
}

// statusOf are the lines about memory of a process.
func statusOf(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	var lines []string
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Rss") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(lines, ", ")
}

// cpuOver is the processor time of a process in a while.
func cpuOver(ctx context.Context, t *testing.T, pid int, while time.Duration) time.Duration {
	t.Helper()
	before, err := process.ProcessorTime(pid)
	must(t, err)
	select {
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	case <-time.After(while):
	}
	after, err := process.ProcessorTime(pid)
	must(t, err)
	return after - before
}
