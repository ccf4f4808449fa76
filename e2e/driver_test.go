// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// labelNode sets a label of the cluster's node, or removes it.
func (s *space) labelNode(ctx context.Context, key string, value *string) {
	s.Helper()
	text := "null"
	if value != nil {
		text = fmt.Sprintf("%q", *value)
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, key, text)
	_, err := env.kube.CoreV1().Nodes().Patch(ctx, env.cluster.NodeName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

// readiness waits until /readyz says something, or nothing where that is empty.
func (s *space) readiness(ctx context.Context, want string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("the plugin to say %q", want), func(ctx context.Context) (bool, string, error) {
		err := env.node.Readiness(ctx)
		if want == "" {
			return err == nil, fmt.Sprint(err), nil
		}
		return err != nil && strings.Contains(err.Error(), want), fmt.Sprint(err), nil
	})
}

// An admin replaces the driver on a running node: the plugin releases it, claims end without it, and after it the new
// driver is what pods get.
func TestDriver_Replaced(t *testing.T) {
	ctx, s := newSpace(t, nil)
	yes := "true"
	drained := func() { s.labelNode(context.WithoutCancel(ctx), v1alpha1.ReleaseDriverLabel, nil) }
	t.Cleanup(drained)
	s.create(ctx, partitionPod("partition", smallClass)...)
	s.running(ctx, "partition")

	s.labelNode(ctx, v1alpha1.ReleaseDriverLabel, &yes)
	s.readiness(ctx, "release-driver=true")
	s.eventually(ctx, "all devices to be tainted", func(ctx context.Context) (bool, string, error) {
		for _, d := range devicesOf(s.slices(ctx, env.cluster.NodeName())) {
			if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == "gpu.cleave.dev/draining" }) {
				return false, d.Name + " is not", nil
			}
		}
		return true, "", nil
	})
	s.create(ctx, gpuPod("waiting", 1)...)
	s.unschedulable(ctx, "waiting")
	// The pod's programs are the last that have the driver open.
	s.delete(ctx, "partition")
	_, err := env.node.Sim(ctx, "driver", "unload")
	s.must(err)
	s.readiness(ctx, "release-driver=true")

	// A plugin that starts now leaves the driver alone, too.
	s.must(env.node.Kill())
	s.must(env.node.Start(ctx))
	s.readiness(ctx, "release-driver=true")

	_, err = env.node.Sim(ctx, "create", "--node", model, "--force", "--driver-version", "590.44.01")
	s.must(err)
	t.Cleanup(s.oldDriver)
	drained()
	s.readiness(ctx, "")
	pod := s.running(ctx, "waiting")
	s.checkSees(ctx, pod, s.devices(ctx, pod))
	for _, d := range s.published(ctx) {
		if got := *d.Attributes["driverVersion"].VersionValue; got != "590.44.1" {
			t.Errorf("%s is published with driver %s", d.Name, got)
		}
	}
	spec, err := os.ReadFile(filepath.Join(env.cluster.CDIDir(), "gpu.cleave.dev-gpu.json"))
	s.must(err)
	if !strings.Contains(string(spec), "590.44.01") || strings.Contains(string(spec), "580.95.05") {
		t.Error("the CDI spec names other files than those of the new driver")
	}
	s.waitRecords(ctx, env.node, ownClaim(pod))
}

// oldDriver brings back the driver that the other tests expect.
func (s *space) oldDriver() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.must(env.kube.CoreV1().Pods(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.must(env.client.WaitGone(ctx, s.name, ""))
	s.must(env.node.Stop())
	_, err := env.node.Sim(ctx, "create", "--node", model, "--force")
	s.must(err)
	s.startPlugin(ctx)
}
