// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"os"
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
	namespace = release.Namespace
	// demo is the namespace of pods that use GPUs.
	demo = metav1.NamespaceDefault
	// timeout bounds every step, and is more than Helm gets in one.
	timeout = 15 * time.Minute
)

// place is a node with its GPUs.
type place struct {
	cluster.Node
	index int
	gpus  *node.Node
}

// bed is a cluster of three nodes with simulated GPUs.
type bed struct {
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	client  workload.Client
	release *release.Bed
	places  []place
}

// env is set before the first test runs; nil where tests run without a cluster.
var env *bed

var tests = workload.Suite{
	Variable: "CLEAVE_E2E", On: "a local Kubernetes of its own (make test-all)",
	Options: cluster.Options{Dir: "/var/lib/cleave-nodes", Nodes: 3, NodeLabels: map[string]string{release.NodeLabel: "true"}},
}

func TestMain(m *testing.M) { os.Exit(tests.Run(m, setUp, nil)) }

func setUp(ctx context.Context, client workload.Client) (err error) {
	env = &bed{cluster: client.Cluster, kube: client.Kube, client: client}
	if err := workload.Create(ctx, env.kube, "", []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}); err != nil {
		return err
	}
	if env.release, err = release.Prepare(ctx, env.cluster, tests.Options.Source, "hgx-h100"); err != nil {
		return err
	}
	for i, n := range env.cluster.Nodes() {
		env.places = append(env.places, place{n, i, env.release.Nodes[i]})
	}
	return nil
}

// hasScheduler reports whether the cluster's version of Kubernetes can have cleave-scheduler.
func (b *bed) hasScheduler() bool { return strings.HasPrefix(b.cluster.Version(), "1.37.") }

// values of a release that works in the cluster.
func (b *bed) values() string { return b.valuesFor(release.Settings{}) }

// valuesFor are values with settings besides the address of the API server.
func (b *bed) valuesFor(s release.Settings) string {
	host, port := b.release.APIServer()
	return b.release.Values(s) + fmt.Sprintf(`
scheduler:
  enabled: %t
  replicas: 1
  assignPods: false # the cluster's own schedules while the node of this one is lost
  env: [{name: KUBERNETES_SERVICE_HOST, value: "%s"}, {name: KUBERNETES_SERVICE_PORT, value: "%s"}]
`, b.hasScheduler(), host, port)
}

// helm runs Helm against the cluster.
func (b *bed) helm(t *testing.T, ctx context.Context, values string, args ...string) {
	t.Helper()
	_, err := b.release.Helm(ctx, values, args...)
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
	tests.Bound(t, timeout)
	workload.RunSteps(t, timeout, diagnosis, []workload.Step{
		{Name: "a plugin on every node", Run: installed},
		{Name: "pods of every tier on every node", Run: everyTier},
		{Name: "a plugin writes of its own node alone", Run: nodeRestriction},
		{Name: "a rollout disturbs no node", Run: rollout},
		{Name: "a node is lost", Run: nodeLost},
		{Name: "the node comes back", Run: nodeBack},
		{Name: "the scheduler packs and spreads", Run: scheduled},
		{Name: "recipes keep their promises", Run: recipes},
		{Name: "two schedulers at once leave no pod behind", Run: twoSchedulers},
		{Name: "urgent pods bump backfill", Run: prioritized},
		{Name: "a spot notice moves work to another node", Run: noticed},
		{Name: "repack restarts pods under load", Run: repacked},
		{Name: "uninstall leaves nothing on any node", Run: uninstalled},
	})
}
