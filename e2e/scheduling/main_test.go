// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
)

// startTimeout bounds the start of a program on a busy machine.
const startTimeout = 3 * time.Minute

// bed is an API server of its own.
type bed struct {
	t          *testing.T
	dir        string
	control    *cluster.Cluster
	kube       kubernetes.Interface
	kubeconfig string
	scheduler  *process.Program
	port       int // the scheduler's
}

// newBed starts a control plane, which ends with the test. There are the DeviceClasses of the manifests, and nodes.
func newBed(t *testing.T, nodes ...string) *bed {
	t.Helper()
	return newBedOf(t, nil, nodes...)
}

func newBedOf(t *testing.T, gates map[string]bool, nodes ...string) *bed {
	t.Helper()
	b := newBedWith(t, cluster.Options{FeatureGates: gates})
	b.addNodes(nodes...)
	return b
}

// newBedWith is newBed with options of the control plane, and no nodes.
func newBedWith(t *testing.T, opts cluster.Options) *bed {
	t.Helper()
	if os.Getenv("CLEAVE_E2E") != "1" {
		t.Skip("set CLEAVE_E2E=1: it needs root, the programs of Kubernetes and bin/cleave-scheduler (make test-all)")
	}
	dir, err := os.MkdirTemp("/tmp", "cleave-") // t.TempDir is too long for sockets
	must(t, err)
	t.Cleanup(func() { must(t, cluster.Down(context.Background(), dir)) })
	opts.Dir, opts.ControlPlane = dir, true
	control, err := cluster.Up(t.Context(), opts)
	must(t, err)
	b := &bed{t: t, dir: t.TempDir(), control: control, kubeconfig: control.Kubeconfig()}
	b.kube, err = control.Client()
	must(t, err)
	b.addClasses()
	return b
}

// must ends a test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bin is the path of a program below bin/.
func bin(parts ...string) string {
	path, _ := filepath.Abs(filepath.Join(append([]string{"..", "..", "bin"}, parts...)...))
	return path
}

// startScheduler starts cleave-scheduler with arguments of the plugin.
func (b *bed) startScheduler(args string) {
	b.t.Helper()
	b.start(bin("cleave-scheduler"), "--config="+b.config(args, nil))
}

// startKubeScheduler starts the kube-scheduler of a release with feature gates, which ends with the test.
func (b *bed) startKubeScheduler(version string, gates map[string]bool) {
	b.t.Helper()
	var said []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		said = append(said, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	b.start(bin("kubernetes", "v"+version, "kube-scheduler"), "--kubeconfig="+b.kubeconfig, "--leader-elect=false",
		"--feature-gates="+strings.Join(said, ","))
}

// start starts a scheduler, which ends with the test, and waits until it has read the cluster.
func (b *bed) start(program string, args ...string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	log := filepath.Join(b.dir, filepath.Base(program)+".log")
	p, port, err := release.RunScheduler(ctx, exec.Command(program, append(args, "-v=4")...), log)
	must(b.t, err)
	b.scheduler, b.port = p, port
	b.t.Cleanup(func() { _ = p.End(syscall.SIGKILL) })
}

// config is the file of its configuration, with arguments of GPUPacking as JSON, and of DevicePreemption, if any.
func (b *bed) config(args string, preemption map[string]any) string {
	b.t.Helper()
	arguments := map[string]any{"GPUPacking": json.RawMessage(args)}
	if preemption != nil {
		arguments["DevicePreemption"] = preemption
	}
	config, err := release.SchedulerConfig("../..", b.kubeconfig, 1000, arguments)
	must(b.t, err)
	path := filepath.Join(b.dir, "scheduler.yaml")
	must(b.t, os.WriteFile(path, config, 0o600))
	return path
}
