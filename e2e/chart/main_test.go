// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"net"
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const model = "hgx-h100"

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

var tests = workload.Suite{
	Variable: "CLEAVE_E2E", On: "a local Kubernetes of its own (make test-all)",
	Options: cluster.Options{
		Dir: "/var/lib/cleave-chart", NodeLabels: map[string]string{release.NodeLabel: "true"},
		// Older versions of the API, which admission must not pass over.
		RuntimeConfig: []string{"resource.k8s.io/v1beta1=true", "resource.k8s.io/v1beta2=true"},
	},
}

func TestMain(m *testing.M) { os.Exit(tests.Run(m, setUp, tearDown)) }

func setUp(ctx context.Context, client workload.Client) error {
	b := &bed{cluster: client.Cluster, kube: client.Kube, client: client, cgroups: release.Cgroups()}
	env = b
	if err := workload.Create(ctx, b.kube, "", []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}); err != nil {
		return err
	}
	var err error
	if b.Bed, err = release.Prepare(ctx, b.cluster, tests.Options.Source, model); err != nil {
		return err
	}
	b.api, err = release.Forward(ctx, cluster.PodGateway, net.JoinHostPort("127.0.0.1", strconv.Itoa(b.cluster.APIServerPort())))
	return err
}

func tearDown(context.Context) error {
	if env != nil && env.api != nil {
		env.api.Stop()
	}
	return nil
}

// values of a release that works in the cluster. Pods reach the API server where it is forwarded.
func (b *bed) values(privileged bool) string {
	return b.Values(release.Settings{APIHost: cluster.PodGateway, APIPort: b.api.Port, Cgroups: b.cgroups, Unprivileged: !privileged})
}
