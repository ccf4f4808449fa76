// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// An admin replaces the driver on a running node: the plugin releases it, claims end without it, and after it the new
// driver is what pods get.
func TestDriver_Replaced(t *testing.T) {
	ctx, s := newSpace(t)
	yes := "true"
	drained := func() { s.plugin.labelNode(context.WithoutCancel(ctx), v1alpha1.ReleaseDriverLabel, nil) }
	t.Cleanup(drained)
	s.pods.run(ctx, partitionPod("partition", smallClass))

	s.plugin.labelNode(ctx, v1alpha1.ReleaseDriverLabel, &yes)
	s.plugin.waitReadiness(ctx, "release-driver=true")
	s.published.waitTainted(ctx, "gpu.cleave.dev/draining")
	s.create(ctx, gpuPod("waiting", 1)...)
	s.pods.unschedulable(ctx, "waiting")
	// The pod's programs are the last that have the driver open.
	s.pods.delete(ctx, "partition")
	s.hardware.sim(ctx, "driver", "unload")
	s.plugin.waitReadiness(ctx, "release-driver=true")

	// A plugin that starts now leaves the driver alone, too.
	s.must(env.node.Kill())
	s.must(env.node.Start(ctx))
	s.plugin.waitReadiness(ctx, "release-driver=true")

	s.hardware.sim(ctx, "create", "--node", model, "--force", "--driver-version", "590.44.01")
	atEnd(s.T, s.hardware.resetDriver)
	drained()
	s.plugin.waitReadiness(ctx, "")
	pod := s.pods.running(ctx, "waiting")
	s.pods.checkSees(ctx, pod, s.pods.devices(ctx, pod))
	for _, d := range s.published.gpus(ctx) {
		if got := *d.Attributes["driverVersion"].VersionValue; got != "590.44.1" {
			t.Errorf("%s is published with driver %s", d.Name, got)
		}
	}
	spec, err := os.ReadFile(filepath.Join(env.cluster.CDIDir(), "gpu.cleave.dev-gpu.json"))
	s.must(err)
	if !strings.Contains(string(spec), "590.44.01") || strings.Contains(string(spec), "580.95.05") {
		t.Error("the CDI spec names other files than those of the new driver")
	}
	s.plugin.waitRecords(ctx, env.node, ownClaim(pod))
}
