// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod gets the GPU of one that was deleted by force in another tier: Prepare waits until the container has ended, and is not
// refused before.
func TestForceDeletedPod_NextTier(t *testing.T) {
	ctx, s := newSpace(t)
	target := s.published.gpus(ctx)[0]
	share := shareSpec("timeslice.cleave.dev")
	share.Devices.Requests[0].Exactly.Selectors = claimOf(1, thisGPU(&target)).Devices.Requests[0].Exactly.Selectors
	first, second := claimPod("first", share), gpuPod("second", 1, thisGPU(&target))
	stubborn(podOf(first), s.name+"-first")
	s.create(ctx, first...)
	s.pods.running(ctx, "first")
	s.create(ctx, second...)
	s.pods.unschedulable(ctx, "second")
	deleteByForce(ctx, s, "first")
	start := time.Now()
	pod := s.pods.running(ctx, "second")
	t.Logf("running %s after the deletion", time.Since(start).Round(time.Millisecond))
	if runsWithMark(s.name + "-first") {
		t.Error("the first pod's container still runs")
	}
	if refused := s.events.refusals(ctx, "second"); len(refused) > 0 {
		t.Errorf("the second pod was refused before it was prepared: %q", refused)
	}
	s.plugin.waitRecords(ctx, env.node, ownClaim(pod))
}

// ResourceSlices that somebody deleted are back at once, and an Event says so.
func TestResourceSlices_Deleted(t *testing.T) {
	ctx, s := newSpace(t)
	name := env.cluster.NodeName()
	before := deviceNames(s.published.gpus(ctx))
	s.must(env.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}))
	start := time.Now()
	s.eventually(ctx, "all devices to be published again", func(ctx context.Context) (bool, string, error) {
		list := s.published.slices(ctx, name)
		complete := len(list) > 0 && int64(len(list)) == list[0].Spec.Pool.ResourceSliceCount
		return complete && len(wholeGPUs(list)) == len(before), fmt.Sprintf("%d slices", len(list)), nil
	})
	took := time.Since(start)
	t.Logf("back after %s", took.Round(time.Millisecond))
	if took > 20*time.Second { // left alone, the helper takes some 30 s; the plugin tries again after 1, 2 and 4 s
		t.Errorf("the slices were back after %s", took)
	}
	s.events.wait(ctx, "", name, "ResourceSlicesDeleted", "were deleted", "audit log")
}
