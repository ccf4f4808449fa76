// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

func TestNodes_SchedulerPicksNode(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.newPlainNode(ctx, func(o *corev1.Node) {
		o.Spec.Unschedulable = false
		o.Labels = map[string]string{"e2e": s.name}
	})
	n.sim(ctx, "create", "--node", "a30")
	s.must(n.Start(ctx))
	n.waitOffered(ctx, 2)
	n.makeSchedulable(ctx)

	a30 := `device.attributes["gpu.cleave.dev"].productName.contains("A30")`
	s.pods.createAnywhere(ctx, gpuPod("there", 1, a30), nil)
	s.pods.createAnywhere(ctx, gpuPod("elsewhere", 1, a30), map[string]string{corev1.LabelHostname: env.cluster.NodeName()})
	pod := s.pods.scheduled(ctx, "there")
	if pod.Spec.NodeName != n.name {
		t.Errorf("a pod for an A30 went to node %s, want %s", pod.Spec.NodeName, n.name)
	}
	if message := s.pods.unschedulable(ctx, "elsewhere"); !strings.Contains(message, "1 cannot allocate all claims") {
		t.Errorf("the scheduler says %q of a pod for an A30 on the H100 node", message)
	}
	wire, _ := s.pods.ownClaim(ctx, pod)
	if devices := n.prepared(ctx, wire, 1); devices[0].DeviceName != n.deviceNames(ctx)[0] {
		t.Errorf("the pod got %v, want the last GPU of its node", devices)
	}
	s.must(n.Unprepare(ctx, wire))
}

// The Node object is deleted and made anew. The slices of the plugin are deleted with the first one: it restarts itself, since it knows
// the UID of its Node from its start, and publishes them as the second's. A claim that is prepared stays so.
func TestNodes_Recreated(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.startPlainNode(ctx)
	before := n.deviceNames(ctx)
	claim := s.allocate(ctx, "kept", workload.OneGPU(n.name, before[0], false))
	n.prepared(ctx, claim, 1)
	s.must(workload.RecreateNode(ctx, env.kube, n.name))
	n.waitOffered(ctx, gpus)
	after := n.deviceNames(ctx)
	slices.Sort(before)
	slices.Sort(after)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("devices (-before +after):\n%s", diff)
	}
	s.plugin.waitRecords(ctx, n.Node, claim.Name)
	s.must(n.Unprepare(ctx, claim))
	s.plugin.waitRecords(ctx, n.Node)
}
