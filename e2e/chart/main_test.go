// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// clusterDir is the cluster's directory, of these tests alone.
	clusterDir = "/var/lib/cleave-chart"
	model      = "hgx-h100"
)

// bed is a cluster without Cleave, whose node has simulated GPUs.
type bed struct {
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	client  workload.Client
	// Bed is nil until it is prepared.
	*release.Bed
	// cgroups is where cgroup v2 is mounted, empty if nowhere.
	cgroups string
	// api forwards pods' connections to the API server.
	api *release.Forwarder
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
		if env != nil && env.api != nil {
			env.api.Stop()
		}
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
		Source: source, Dir: clusterDir, Output: os.Stdout, NodeLabels: map[string]string{release.NodeLabel: "true"},
		// Older versions of the API, which admission must not pass over.
		RuntimeConfig: []string{"resource.k8s.io/v1beta1=true", "resource.k8s.io/v1beta2=true"},
	})
	if err != nil {
		return nil, err
	}
	b := &bed{cluster: client.Cluster, kube: client.Kube, client: client, cgroups: release.Cgroups()}
	if err := workload.Create(ctx, b.kube, "", []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}); err != nil {
		return nil, err
	}
	if b.Bed, err = release.Prepare(ctx, b.cluster, source, model); err != nil {
		return nil, err
	}
	b.api, err = release.Forward(ctx, cluster.PodGateway, net.JoinHostPort("127.0.0.1", strconv.Itoa(b.cluster.APIServerPort())))
	return b, err
}

// onCluster bounds a test that needs the cluster, and skips it where there is none.
func onCluster(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if env == nil {
		t.Skip("CLEAVE_E2E=1 runs this, as root, on a local Kubernetes of its own (make test-all)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// values of a release that works in the cluster. Pods reach the API server where it is forwarded.
func (b *bed) values(privileged bool) string {
	return b.Values(release.Settings{APIHost: cluster.PodGateway, APIPort: b.api.Port, Cgroups: b.cgroups, Unprivileged: !privileged})
}
