// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// A label of the node has one GPU reset once its pod has ended: until then it is given to no other, and pods on other GPUs go on.
func TestReset_OnRequest(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	node := env.cluster.NodeName()
	other := s.pods.run(ctx, gpuPod("other", 1))
	faulty := s.pods.device(ctx, s.pods.run(ctx, gpuPod("holder", 1)))
	s.hardware.fault(ctx, faulty, "--recovery", "1")
	s.published.waitUnhealthy(ctx, s.published.family(ctx, faulty, "needs-reset:NoSchedule"))

	atEnd(t, func(ctx context.Context) { s.plugin.labelNode(ctx, v1alpha1.ResetLabel, nil) })
	request := faulty + ".once"
	s.plugin.labelNode(ctx, v1alpha1.ResetLabel, &request)
	s.events.wait(ctx, "default", node, "GPUResetPending", faulty, s.name+"/")
	s.create(ctx, gpuPod("waits", gpus-1)...)
	s.pods.unschedulable(ctx, "waits")

	s.pods.delete(ctx, "holder")
	s.events.wait(ctx, "default", node, "GPUReset", faulty, v1alpha1.ResetLabel)
	waits := s.pods.running(ctx, "waits")
	if got := s.pods.devices(ctx, waits); !slices.Contains(got, faulty) {
		t.Errorf("the pod that waited got %v, want %s among them", got, faulty)
	}
	s.pods.checkSees(ctx, waits, s.pods.devices(ctx, waits))
	s.published.waitUnhealthy(ctx, map[string]string{})
	s.pods.checkUndisturbed(ctx, other)
}
