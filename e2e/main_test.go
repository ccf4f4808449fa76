// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Cleave from outside: its binary on a simulated node of a real Kubernetes.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// clusterDir is not the default one, which a person's demo may use.
	clusterDir = "/var/lib/cleave-e2e"
	// programsDir keeps copies of the programs under test, so that a build during a run does not disturb it.
	programsDir = "/var/lib/cleave-e2e-programs"

	model = "hgx-h100"
	gpus  = 8
)

// suite is what all tests share.
type suite struct {
	source  string
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	client  workload.Client
	// node is the cluster's node with the plugin.
	node *node.Node
}

// env is set before the first test runs.
var env *suite

var tests = workload.Suite{Variable: "CLEAVE_E2E", Options: cluster.Options{Dir: clusterDir}}

func TestMain(m *testing.M) {
	if !tests.Enabled() {
		fmt.Println("e2e: skipped; CLEAVE_E2E=1 runs these tests, as root, on a local Kubernetes of their own (make test-all)")
		return
	}
	code := tests.Run(m, setUp, tearDown)
	if err := nothingLeft(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func setUp(ctx context.Context, client workload.Client) (err error) {
	env = &suite{source: tests.Options.Source, cluster: client.Cluster, kube: client.Kube, client: client}
	if err := copyPrograms(filepath.Join(env.source, "bin")); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	dir, err := env.cluster.GuestDir("node")
	if err != nil {
		return err
	}
	if env.node, err = node.Run(ctx, node.Options{Cluster: env.cluster, Bin: programsDir, Model: model, Dir: dir}); err != nil {
		return err
	}
	if err := client.WaitSlices(ctx, workload.Driver, nil); err != nil {
		return err
	}
	return client.CreateFile(ctx, "", filepath.Join(env.source, "deployments", "manifests", "deviceclasses.yaml"))
}

// copyPrograms puts what make build made where nobody builds.
func copyPrograms(from string) error {
	if err := errors.Join(os.RemoveAll(programsDir), os.MkdirAll(programsDir, 0o755)); err != nil {
		return fmt.Errorf("create a directory for the programs under test: %w", err)
	}
	for _, name := range []string{"cleave", "cleave-node", "nvml-sim", "libnvidia-ml.so.1"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("copy the programs under test (make build makes them): %w", err)
		}
		if err := os.WriteFile(filepath.Join(programsDir, name), data, 0o755); err != nil {
			return fmt.Errorf("copy the programs under test: %w", err)
		}
	}
	return nil
}

// tearDown removes device nodes of the machine that a test made and, as it was interrupted, has not removed.
func tearDown(ctx context.Context) error {
	if !hostNodes.Load() {
		return nil
	}
	_, err := env.node.Sim(ctx, "remove")
	return err
}

// nothingLeft removes the programs and looks for what is left of the cluster by other means than its clean-up uses.
func nothingLeft() error {
	if err := os.RemoveAll(programsDir); err != nil {
		return err
	}
	var left []error
	for _, dir := range []string{clusterDir, programsDir} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			left = append(left, fmt.Errorf("%s is left", dir))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, clusterDir) {
			left = append(left, fmt.Errorf("a mount is left: %s", strings.TrimSpace(line)))
		}
	}
	for _, p := range processes() {
		if strings.Contains(p.Command+p.Environment, clusterDir) && p.PID != os.Getpid() {
			left = append(left, fmt.Errorf("process %d is left: %q", p.PID, p.Command))
		}
	}
	return errors.Join(left...)
}
