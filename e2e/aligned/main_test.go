// SPDX-License-Identifier: Apache-2.0

package aligned

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// timeout bounds every test on a busy machine.
const timeout = 8 * time.Minute

// bed is a node with three drivers.
type bed struct {
	client workload.Client
	gpus   *node.Node
	source string
	// cpus of the machine by NUMA node, as the CPU driver is told.
	cpus [2][]int
}

// env is set before the first test runs; nil where tests run without a cluster.
var env *bed

var tests = workload.Suite{
	Variable: "CLEAVE_E2E", On: "a local Kubernetes of its own (make test-all)",
	Options: cluster.Options{Dir: "/var/lib/cleave-aligned", NRI: true},
}

func TestMain(m *testing.M) { os.Exit(tests.Run(m, setUp, tearDown)) }

// policy has GPUs publish what the other drivers do.
const policy = `apiVersion: gpu.cleave.dev/v1alpha1
kind: NodePolicy
metadata: {name: default}
rules: [{publish: {attributes: [dra.net/numaNode]}}]
`

func setUp(ctx context.Context, client workload.Client) error {
	env = &bed{client: client, source: tests.Options.Source}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	programs, err := cluster.BuildNeighbors(ctx, tests.Options)
	if err != nil {
		return err
	}
	dir, err := client.Cluster.GuestDir("node")
	if err != nil {
		return err
	}
	rules := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		return err
	}
	env.gpus, err = node.Run(ctx, node.Options{Cluster: client.Cluster, Bin: env.bin(""), Model: "hgx-h100", Dir: dir, Flags: []string{"--policy", rules}})
	if err != nil {
		return err
	}
	for _, start := range []func(context.Context, string) error{env.startCPUs, env.startNICs} {
		if err := start(ctx, programs); err != nil {
			return err
		}
	}
	if err := client.CreateFile(ctx, "", filepath.Join(env.source, "deployments", "manifests", "deviceclasses.yaml")); err != nil {
		return err
	}
	return workload.Create(ctx, client.Kube, "", []runtime.Object{class("dra.cpu", "dra.cpu"), class("dranet.net", "dra.net")})
}

// bin is the path of a program below bin/.
func (b *bed) bin(name string) string { return filepath.Join(b.source, "bin", name) }

// class selects all devices of a driver.
func class(name, driver string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}}}}
}
