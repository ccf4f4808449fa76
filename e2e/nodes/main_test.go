// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// clusterDir is the cluster's directory, of these tests alone.
	clusterDir = "/var/lib/cleave-nodes"
	model      = "hgx-h100"
	namespace  = release.Namespace
	// demo is the namespace of pods that use GPUs.
	demo = metav1.NamespaceDefault
	// patience bounds every step, and is more than Helm gets in one.
	patience = 15 * time.Minute
)

// place is a node with its GPUs.
type place struct {
	cluster.Node
	gpus *node.Node
}

// bed is a cluster of three nodes with simulated GPUs.
type bed struct {
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	client  workload.Client
	release *release.Bed
	source  string
	places  []place
}

// env is set before the first test runs; nil where tests run without a cluster.
var env *bed

func TestMain(m *testing.M) {
	if os.Getenv("CLEAVE_E2E") != "1" {
		os.Exit(m.Run())
	}
	os.Exit(cluster.RunTests(m, func(ctx context.Context) (err error) {
		env, err = setUp(ctx)
		return err
	}, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		return cluster.Down(ctx, clusterDir)
	}))
}

func setUp(ctx context.Context) (*bed, error) {
	source, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	client, err := workload.Up(ctx, cluster.Options{
		Source: source, Dir: clusterDir, Output: os.Stdout, Nodes: 3, NodeLabels: map[string]string{release.NodeLabel: "true"},
	})
	if err != nil {
		return nil, err
	}
	b := &bed{cluster: client.Cluster, kube: client.Kube, client: client, source: source}
	if err := workload.Create(ctx, b.kube, "", []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}); err != nil {
		return nil, err
	}
	if b.release, err = release.Prepare(ctx, b.cluster, source, model); err != nil {
		return nil, err
	}
	for i, n := range b.cluster.Nodes() {
		b.places = append(b.places, place{n, b.release.Nodes[i]})
	}
	return b, nil
}

// hasScheduler reports whether the cluster's version of Kubernetes can have cleave-scheduler.
func (b *bed) hasScheduler() bool { return strings.HasPrefix(b.cluster.Version(), "1.37.") }

// values of a release that works in the cluster.
func (b *bed) values() string {
	host, port := b.places[0].APIServerHost(), strconv.Itoa(b.cluster.APIServerPort())
	return b.release.Values(release.Settings{APIHost: host, APIPort: port}) + fmt.Sprintf(`
scheduler:
  enabled: %t
  replicas: 1
  env: [{name: KUBERNETES_SERVICE_HOST, value: "%s"}, {name: KUBERNETES_SERVICE_PORT, value: "%s"}]
`, b.hasScheduler(), host, port)
}

// helm runs Helm against the cluster.
func (b *bed) helm(t *testing.T, ctx context.Context, values string, args ...string) {
	t.Helper()
	_, err := release.Helm(ctx, b.source, values, append(args, "--kubeconfig", b.cluster.Kubeconfig(), "--namespace", namespace)...)
	must(t, err)
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Log(diagnosis())
		t.Fatal(err)
	}
}

// diagnosis is what a person wants to see of a test that failed.
func diagnosis() string { return env.client.Diagnosis(namespace, demo) }

// TestNodes goes through the life of a release on three nodes; each step needs those before.
func TestNodes(t *testing.T) {
	if env == nil {
		t.Skip("CLEAVE_E2E=1 runs this, as root, on a local Kubernetes of its own (make test-all)")
	}
	workload.RunSteps(t, patience, diagnosis, []workload.Step{
		{Name: "a plugin on every node", Run: installed},
		{Name: "pods of every tier on every node", Run: everyTier},
		{Name: "a plugin writes of its own node alone", Run: nodeRestriction},
		{Name: "a rollout disturbs no node", Run: rollout},
		{Name: "a node is lost", Run: nodeLost},
		{Name: "the node comes back", Run: nodeBack},
		{Name: "the scheduler packs and spreads", Run: scheduled},
		{Name: "uninstall leaves nothing on any node", Run: uninstalled},
	})
}
