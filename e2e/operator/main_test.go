// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// namespace is the operator's.
	namespace = "gpu-operator"
	// demo is the namespace of pods that use GPUs.
	demo = metav1.NamespaceDefault
	// timeout bounds every step on a busy machine.
	timeout = 10 * time.Minute

	driverLabel    = "nvidia.com/gpu.deploy.driver"
	clientLabel    = "nvidia.com/gpu.deploy.client"
	validatorLabel = "nvidia.com/gpu.deploy.operator-validator"
)

// place is a node with its GPUs.
type place struct {
	cluster.Node
	gpus *node.Node
	// dir is a directory on the node, of the stand-ins.
	dir string
}

// bed is a cluster of three nodes with simulated GPUs, and Cleave.
type bed struct {
	client   workload.Client
	release  *release.Bed
	places   []*place
	upgrader *process.Program
}

// env is set before the first test runs; nil where tests run without a cluster.
var env *bed

var tests = workload.Suite{
	Variable: "CLEAVE_E2E", On: "a local Kubernetes of its own (make test-all)",
	Options: cluster.Options{Dir: "/var/lib/cleave-operator", Nodes: 3, NodeLabels: map[string]string{
		release.NodeLabel: "true", driverLabel: "true", clientLabel: "true", validatorLabel: "true",
	}},
}

func TestMain(m *testing.M) { os.Exit(tests.Run(m, setUp, tearDown)) }

func setUp(ctx context.Context, client workload.Client) (err error) {
	env = &bed{client: client}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var spaces []runtime.Object
	for _, name := range []string{release.Namespace, namespace} {
		spaces = append(spaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	if err := workload.Create(ctx, client.Kube, "", spaces); err != nil {
		return err
	}
	if env.release, err = release.Prepare(ctx, client.Cluster, tests.Options.Source, "hgx-h100"); err != nil {
		return err
	}
	for i, n := range client.Cluster.Nodes() {
		p := &place{Node: n, gpus: env.release.Nodes[i]}
		if p.dir, err = n.GuestDir("driver"); err != nil {
			return err
		}
		env.places = append(env.places, p)
	}
	chart, values := release.Chart(env.release.Source), env.release.Values(release.Settings{})
	if _, err := env.release.Helm(ctx, values, "install", "cleave", chart, "--wait", "--timeout", "300s"); err != nil {
		return err
	}
	return env.startOperator(ctx)
}

// tearDown ends what does not end with the cluster.
func tearDown(context.Context) error {
	if env == nil || env.upgrader == nil {
		return nil
	}
	return env.upgrader.End(syscall.SIGKILL)
}

// startOperator defines the operator's kinds, as its module has them, and starts what upgrades drivers.
func (b *bed) startOperator(ctx context.Context) error {
	program, err := cluster.BuildDriverUpgrade(ctx, tests.Options)
	if err != nil {
		return err
	}
	module, err := cluster.ModuleDir(ctx, tests.Options.Source, "gpuoperator", "github.com/NVIDIA/gpu-operator")
	if err != nil {
		return err
	}
	kind := filepath.Join(module, "config", "crd", "bases", "nvidia.com_clusterpolicies.yaml")
	if _, err := b.client.Kubectl(ctx, "", "apply", "--server-side", "-f", kind); err != nil {
		return err
	}
	if err := b.client.WaitEstablished(ctx, "clusterpolicies.nvidia.com"); err != nil {
		return err
	}
	if _, err := b.client.Kubectl(ctx, "", "apply", "-f", filepath.Join("testdata", "clusterpolicy.yaml")); err != nil {
		return err
	}
	dir, err := b.client.Cluster.GuestDir("operator")
	if err != nil {
		return err
	}
	flags := []string{"--kubeconfig=" + b.client.Cluster.Kubeconfig(), "--namespace=" + namespace}
	b.upgrader, err = process.Start(exec.Command(program, flags...), filepath.Join(dir, "log")) //nolint:noctx // tearDown ends it
	return err
}

// running is an error if what upgrades drivers has ended.
func (b *bed) running() error {
	select {
	case <-b.upgrader.Ended():
		return errors.Join(errors.New("the upgrader has ended"), b.upgrader.Err())
	default:
		return nil
	}
}

// must ends the test if there is an error, with what there is to see of it.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Log(diagnosis())
		t.Fatal(err)
	}
}

func diagnosis() string {
	return env.client.Diagnosis(release.Namespace, namespace, demo) + "\n" + env.upgrader.LogTail(40)
}
