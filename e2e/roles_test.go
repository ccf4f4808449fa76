// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Three nodes with three labels and one directory of policies, a plugin each: training whole, inference cut, development
// shared. Pods find their way by the class that they ask for.
func TestNodes_ThreeRoles(t *testing.T) {
	ctx, s := newSpace(t)
	dir := t.TempDir()
	roles := []struct {
		name, rules, offer string
		pod                []runtime.Object
	}{
		{"training", "[{tiers: [exclusive]}]", "gpu=8", gpuPod("trains", 4)},
		{"inference", "[{mig: {layout: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}}}]", "mig=32", partitionPod("infers", "mig-2g.20gb.cleave.dev")},
		{"development", "[{tiers: [timeSlice], timeSlice: {shares: 8}}]", "timeslice=8", claimPod("develops", shareSpec(timeSliceClass))},
	}
	nodes := map[string]*plainNode{}
	for _, role := range roles {
		s.plugin.writePolicy(dir, role.name, role.rules)
	}
	for _, role := range roles {
		n := s.newPlainNode(ctx, func(o *corev1.Node) {
			o.Spec.Unschedulable = false
			o.Labels = map[string]string{"e2e": s.name, v1alpha1.PolicyLabel: role.name}
		}, "--policy", dir)
		nodes[role.name] = n
		n.sim(ctx, "create", "--node", model)
		s.must(n.Start(ctx))
		n.makeSchedulable(ctx)
	}
	for _, role := range roles {
		s.published.waitOffer(ctx, nodes[role.name].name, role.offer)
	}
	for _, role := range roles {
		s.pods.createAnywhere(ctx, role.pod, map[string]string{"e2e": s.name})
		pod := s.pods.scheduled(ctx, podOf(role.pod).Name)
		n := nodes[role.name]
		if pod.Spec.NodeName != n.name {
			t.Errorf("pod %s went to node %s, want the node for %s", pod.Name, pod.Spec.NodeName, role.name)
		}
		wire, allocation := s.pods.ownClaim(ctx, pod)
		devices, err := n.Prepare(ctx, wire)
		s.must(err)
		if len(devices) != len(allocation.Devices.Results) {
			t.Errorf("pod %s got %v", pod.Name, devices)
		}
		s.Cleanup(func() { s.must(n.Unprepare(context.Background(), wire)) })
	}

	// Development is over: what its pod has stays, tainted; the rest is for training now.
	n := nodes["development"]
	n.label(ctx, v1alpha1.PolicyLabel, "training")
	s.published.waitOffer(ctx, n.name, "gpu=8 timeslice!=1")
}
