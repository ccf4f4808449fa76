// SPDX-License-Identifier: Apache-2.0

package realgpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	clusterDir = "/var/lib/cleave-gpu"
	// probeImage has cuda-probe and the C library that the driver's libraries need.
	probeImage = "cleave.local/cuda-probe:e2e"
	namespace  = "default"
)

// env is set before the first test runs; nil where tests run without a GPU.
var env *bed

// bed is a cluster whose node has this machine's GPUs, with Cleave installed.
type bed struct {
	workload.Client
	*release.Bed
	values string
	// metrics is the port of the plugin's metrics, on the network of the host.
	metrics string
}

var tests = workload.Suite{
	Variable: "CLEAVE_GPU", On: "a machine with a GPU (docs/hardware.md)",
	Options: cluster.Options{Dir: clusterDir, NodeLabels: map[string]string{release.NodeLabel: "true"}},
}

func TestMain(m *testing.M) {
	os.Exit(tests.Run(m, setUp, func(context.Context) error { return keepLogs() }))
}

func setUp(ctx context.Context, client workload.Client) (err error) {
	b := &bed{Client: client}
	env = b
	if b.Bed, err = release.Prepare(ctx, client.Cluster, tests.Options.Source, ""); err != nil {
		return err
	}
	if err := b.importProbe(ctx); err != nil {
		return err
	}
	port, err := cluster.FreePort(ctx, "")
	if err != nil {
		return err
	}
	b.metrics = strconv.Itoa(port)
	b.values = strings.NewReplacer("$port", strconv.Itoa(client.Cluster.APIServerPort()), "$metrics", b.metrics,
		"$kubelet", client.Cluster.KubeletDir(), "$cdi", client.Cluster.CDIDir(), "$mps", b.MPSDir, "$root", cmp.Or(os.Getenv("CLEAVE_GPU_DRIVER_ROOT"), "/")).Replace(`
image: {repository: cleave.local/cleave, tag: e2e, pullPolicy: Never}
driver: {root: $root}
kubelet: {dir: $kubelet}
cdi: {dir: $cdi}
plugin:
  hostNetwork: true
  logVerbosity: 6
  env: [{name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}, {name: KUBERNETES_SERVICE_PORT, value: "$port"}]
# The mode of the GPU is not ours to change here, nor is its time slice.
mps: {dir: $mps, computeMode: keep, logVerbosity: 4}
metrics: {port: $metrics, usageInterval: 1s}
`)
	return b.install(ctx)
}

// install installs the chart and waits until the GPU is offered whole and by MPS.
func (b *bed) install(ctx context.Context) error {
	if _, err := b.Helm(ctx, b.values, "install", "cleave", release.Chart(b.Source), "--create-namespace"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	err := b.WaitSlices(ctx, workload.Driver, func(pool []resourceapi.ResourceSlice) bool { return hasDevice(pool, "-mps") })
	if err != nil {
		return errors.Join(err, keepLogs())
	}
	return nil
}

func hasDevice(pool []resourceapi.ResourceSlice, suffix string) bool {
	for _, s := range pool {
		for _, d := range s.Spec.Devices {
			if strings.HasSuffix(d.Name, suffix) {
				return true
			}
		}
	}
	return false
}

// importProbe makes the image of pods that use the GPU: busybox, cuda-probe (make gpu-lane), and this machine's C library,
// which is as new as the one that the driver's libraries were installed for.
func (b *bed) importProbe(ctx context.Context) error {
	files := []cluster.File{
		{Path: "bin/cuda-probe", Mode: 0o755, Source: filepath.Join(b.Source, "bin", "gpu-lane", "cuda-probe")},
		{Path: "lib64/ld-linux-x86-64.so.2", Mode: 0o755, Source: "/lib64/ld-linux-x86-64.so.2"},
		{Path: "bin/busybox", Mode: 0o755, Source: "/bin/busybox"},
		{Path: "bin/sh", Link: "busybox"},
		{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}
	for _, name := range []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"} {
		files = append(files, cluster.File{Path: "lib/x86_64-linux-gnu/" + name, Mode: 0o755, Source: "/lib/x86_64-linux-gnu/" + name})
	}
	return b.Cluster.ImportImage(ctx, cluster.Image{Ref: probeImage, Files: files, Cmd: []string{"/bin/sh"},
		// As in NVIDIA's images: a driver of that directory has its programs there in containers, too.
		Env: []string{"PATH=/usr/local/nvidia/bin:/bin:/usr/bin"}})
}

// onGPU bounds a test and skips it where there is no GPU.
func onGPU(t *testing.T, limit time.Duration) (context.Context, *bed) {
	t.Helper()
	return tests.Bound(t, limit), env
}

// keepLogs copies the logs of the cluster to CLEAVE_GPU_OUT, if that is set.
func keepLogs() error {
	out := os.Getenv("CLEAVE_GPU_OUT")
	if out == "" {
		return nil
	}
	for _, pattern := range []string{"logs/*.log", "logs/pods/*/*/*.log"} {
		found, _ := filepath.Glob(filepath.Join(clusterDir, pattern)) // the pattern is good
		for _, file := range found {
			data, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("keep a log: %w", err)
			}
			rel, _ := filepath.Rel(clusterDir, file) // it is below
			if err := os.WriteFile(filepath.Join(out, strings.ReplaceAll(rel, "/", "_")), data, 0o600); err != nil {
				return fmt.Errorf("keep a log: %w", err)
			}
		}
	}
	return nil
}
