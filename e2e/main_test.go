// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Cleave from outside: its binary on a simulated node of a real Kubernetes.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// clusterDir is the cluster's folder: not the default one, which a person's demo may use.
	clusterDir = "/var/lib/cleave-e2e"
	// programsDir keeps copies of the programs under test, so that a build during a run does not disturb it.
	programsDir = "/var/lib/cleave-e2e-programs"

	model = "hgx-h100"
	gpus  = 8
)

// suite is what all tests share.
type suite struct {
	// source is the root of the repository.
	source  string
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	client  workload.Client
	// node is the cluster's node with the plugin.
	node *node.Node
}

// env is set before the first test runs.
var env *suite

func TestMain(m *testing.M) {
	if os.Getenv("CLEAVE_E2E") != "1" {
		fmt.Println("e2e: skipped; CLEAVE_E2E=1 runs these tests, as root, on a local Kubernetes of their own (make e2e)")
		return
	}
	os.Exit(run(m))
}

// run brings everything up, runs the tests and takes everything down, also when a signal arrives in between.
func run(m *testing.M) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code := 1
	var err error
	if env, err = setUp(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
	} else {
		done := make(chan int, 1)
		go func() { done <- m.Run() }()
		select {
		case code = <-done:
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "e2e: interrupted; taking the cluster down")
		}
	}
	if err := tearDown(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	return code
}

func setUp(ctx context.Context) (*suite, error) {
	source, err := filepath.Abs("..")
	if err != nil {
		return nil, err
	}
	if err := copyPrograms(filepath.Join(source, "bin")); err != nil {
		return nil, err
	}
	s := &suite{source: source}
	if s.cluster, err = cluster.Up(ctx, cluster.Options{Source: source, Dir: clusterDir, Output: os.Stdout}); err != nil {
		return nil, err
	}
	if s.kube, err = s.cluster.Client(); err != nil {
		return nil, err
	}
	s.client = workload.Client{Cluster: s.cluster, Kube: s.kube}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if s.node, err = s.startNode(ctx); err != nil {
		return nil, err
	}
	classes, err := workload.Load(filepath.Join(source, "deployments", "manifests", "deviceclasses.yaml"))
	if err != nil {
		return nil, err
	}
	if err := workload.Create(ctx, s.kube, "", classes); err != nil {
		return nil, err
	}
	return s, nil
}

// copyPrograms puts what make build made where nobody builds.
func copyPrograms(from string) error {
	if err := errors.Join(os.RemoveAll(programsDir), os.MkdirAll(programsDir, 0o755)); err != nil {
		return fmt.Errorf("make a folder for the programs under test: %w", err)
	}
	for _, name := range []string{"cleave", "nvml-sim", "libnvidia-ml.so.1"} {
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

// startNode starts the plugin on the cluster's node and waits until it serves and publishes.
func (s *suite) startNode(ctx context.Context) (*node.Node, error) {
	dir, err := s.cluster.GuestDir("node")
	if err != nil {
		return nil, err
	}
	n, err := node.Create(ctx, node.Options{Cluster: s.cluster, Bin: programsDir, Model: model, Dir: dir})
	if err != nil {
		return nil, err
	}
	if err := n.StartSupervisor(ctx); err != nil {
		return nil, err
	}
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	if err := n.WaitReady(ctx); err != nil {
		return nil, err
	}
	return n, workload.Until(ctx, "ResourceSlices", func(ctx context.Context) (bool, string, error) {
		list, err := s.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		complete := len(list.Items) > 0 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount
		return complete, fmt.Sprintf("%d slices", len(list.Items)), nil
	})
}

// tearDown takes everything down and looks for what is left by other means than the clean-up uses.
func tearDown() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := errors.Join(cluster.Down(ctx, clusterDir), os.RemoveAll(programsDir)); err != nil {
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
		if strings.Contains(p.command+p.environment, clusterDir) && p.pid != os.Getpid() {
			left = append(left, fmt.Errorf("process %d is left: %q", p.pid, p.command))
		}
	}
	return errors.Join(left...)
}
