// SPDX-License-Identifier: Apache-2.0

package realgpu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// TestTimes reports how long things take on this GPU: it fails only where something does not work.
func TestTimes(t *testing.T) {
	ctx, b := onGPU(t, 4*time.Minute)
	for _, class := range []string{"", "gpu.cleave.dev", "mps.cleave.dev"} {
		var took []time.Duration
		for i := range 5 {
			name := fmt.Sprintf("timed-%d", i)
			began := time.Now()
			b.start(ctx, t, name, class)
			took = append(took, time.Since(began))
			b.remove(t, name, false)
		}
		slices.Sort(took)
		t.Logf("pod of %q created to running: p50 %s, slowest %s (polled)", class, took[len(took)/2], took[len(took)-1])
	}
	sockets, err := filepath.Glob(filepath.Join(b.Cluster.PluginsDir(), workload.Driver, "dra*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets of the plugin: %v, %v", sockets, err)
	}
	plugin, err := workload.Dial(sockets[0])
	must(t, err)
	defer func() { _ = plugin.Close() }() // nothing is on its way
	for _, suffix := range []string{"", "-mps"} {
		b.timePrepare(ctx, t, plugin, suffix)
	}
}

// timePrepare prepares and unprepares claims for one device, as the kubelet does.
func (b *bed) timePrepare(ctx context.Context, t *testing.T, plugin *workload.Plugin, suffix string) {
	t.Helper()
	pool, device, err := b.device(ctx, suffix)
	must(t, err)
	devices := workload.OneGPU(pool, device, false)
	if suffix != "" {
		devices = workload.OneShare(pool, device, map[string]int64{"memory": 4 * gib, "cores": 25})
	}
	var prepared, unprepared []time.Duration
	for i := range 30 {
		claim, err := b.Allocate(ctx, namespace, fmt.Sprintf("by-hand%s-%d", suffix, i), devices)
		must(t, err)
		began := time.Now()
		if _, err := plugin.Prepare(ctx, claim); err != nil {
			t.Fatal(err)
		}
		prepared = append(prepared, time.Since(began))
		began = time.Now()
		must(t, plugin.Unprepare(ctx, claim))
		unprepared = append(unprepared, time.Since(began))
		must(t, b.Kube.ResourceV1().ResourceClaims(namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{}))
	}
	for what, took := range map[string][]time.Duration{"prepare": prepared, "unprepare": unprepared} {
		t.Logf("%s of %s: first %s", what, device, took[0])
		slices.Sort(took)
		t.Logf("%s of %s: p50 %s, p99 %s", what, device, took[len(took)/2], took[len(took)-1])
	}
}

// device is the node's first GPU, or what else of it has a suffix.
func (b *bed) device(ctx context.Context, suffix string) (pool, name string, err error) {
	list, err := b.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + workload.Driver})
	if err != nil {
		return "", "", fmt.Errorf("list slices: %w", err)
	}
	var names []string
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			names = append(names, d.Name)
			if suffix == "" && isWhole(d.Name) || suffix != "" && len(d.Name) > len(suffix) && d.Name[len(d.Name)-len(suffix):] == suffix {
				return s.Spec.Pool.Name, d.Name, nil
			}
		}
	}
	return "", "", fmt.Errorf("no device with suffix %q among %v", suffix, names)
}

// isWhole says whether a device's name is that of a whole GPU, such as gpu-0000-00-06-0.
func isWhole(name string) bool { return len(name) == len("gpu-0000-00-06-0") }

// pids are the processes of a program.
func pids(t *testing.T, program string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		command, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue // it ended
		}
		first, _, _ := bytes.Cut(command, []byte{0})
		if filepath.Base(string(first)) == program {
			found = append(found, pid)
		}
	}
	return found
}
