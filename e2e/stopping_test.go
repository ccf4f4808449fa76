// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// A plugin that is to end answers the call that is under way: the pod runs without it, and nobody hears of a failure.
func TestPlugin_StoppedWhilePreparing(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.sim(ctx, "fault", "--slow", "3s", "nvmlDeviceCreateGpuInstanceWithPlacement")
	t.Cleanup(func() { s.hardware.sim(context.WithoutCancel(ctx), "fault", "--clear") })
	s.create(ctx, claimPod("partition", workload.ClaimSpec("mig-1g.10gb.cleave.dev", 1))...)
	claim := ownClaim(s.pods.until(ctx, "partition", "to have its claim", func(pod *corev1.Pod) bool { return ownClaim(pod) != "" }))
	s.plugin.waitRecords(ctx, env.node, claim) // written before the partition is created
	if err := env.node.Stop(); err != nil {
		t.Errorf("the plugin ends with %v on SIGTERM, want exit status 0; its log ends with:\n%s", err, env.node.LogTail(15))
	}
	s.pods.running(ctx, "partition")
	if refused := s.events.refusals(ctx, "partition"); len(refused) > 0 {
		t.Errorf("the kubelet says of the pod: %q", refused)
	}
	s.plugin.start(ctx)
	s.plugin.waitRecords(ctx, env.node, claim)
	s.pods.delete(ctx, "partition")
	s.plugin.waitRecords(ctx, env.node)
}
