// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// Three nodes with three labels and one folder of policies, a plugin each: training whole, inference cut, development
// shared. Pods find their way by the class that they ask for.
func TestNodes_ThreeRoles(t *testing.T) {
	ctx, s := newSpace(t, nil)
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
	real, err := env.kube.CoreV1().Nodes().Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	s.must(err)
	for _, role := range roles {
		s.writePolicy(dir, role.name, role.rules)
	}
	for _, role := range roles {
		n := s.newPlainNode(ctx, func(o *corev1.Node) {
			o.Spec.Unschedulable = false
			o.Labels = map[string]string{"e2e": s.name, v1alpha1.PolicyLabel: role.name}
		}, "--policy", dir)
		nodes[role.name] = n
		s.sim(ctx, n, "create", "--node", model)
		s.must(n.Start(ctx))
		object, err := env.kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		s.must(err)
		object.Status.Capacity, object.Status.Allocatable = real.Status.Capacity, real.Status.Allocatable
		_, err = env.kube.CoreV1().Nodes().UpdateStatus(ctx, object, metav1.UpdateOptions{})
		s.must(err)
	}
	for _, role := range roles {
		s.waitOffer(ctx, nodes[role.name].name, role.offer)
	}
	for _, role := range roles {
		pod := podOf(role.pod)
		pod.Spec.NodeSelector = map[string]string{"e2e": s.name}
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		s.create(ctx, role.pod...)
		t.Cleanup(func() {
			now := int64(0) // nobody else ends a pod of a node without a kubelet
			_ = env.kube.CoreV1().Pods(s.name).Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		})
		scheduled := s.scheduled(ctx, pod.Name)
		n := nodes[role.name]
		if scheduled.Spec.NodeName != n.name {
			t.Errorf("pod %s went to node %s, want the node for %s", pod.Name, scheduled.Spec.NodeName, role.name)
		}
		claim, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, ownClaim(scheduled), metav1.GetOptions{})
		s.must(err)
		wire := &drapb.Claim{Namespace: s.name, Name: claim.Name, Uid: string(claim.UID)}
		devices, err := n.Prepare(ctx, wire)
		s.must(err)
		if len(devices) != len(claim.Status.Allocation.Devices.Results) {
			t.Errorf("pod %s got %v", pod.Name, devices)
		}
		s.Cleanup(func() { s.must(n.Unprepare(context.Background(), wire)) })
	}

	// Development is over: what its pod has stays, tainted; the rest is for training now.
	n := nodes["development"]
	object, err := env.kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	s.must(err)
	object.Labels[v1alpha1.PolicyLabel] = "training"
	_, err = env.kube.CoreV1().Nodes().Update(ctx, object, metav1.UpdateOptions{})
	s.must(err)
	s.waitOffer(ctx, n.name, "gpu=8 timeslice!=1")
}

// scheduled waits until a pod has a node.
func (s *space) scheduled(ctx context.Context, name string) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	s.eventually(ctx, "pod "+name+" to be scheduled", func(ctx context.Context) (bool, string, error) {
		var err error
		if pod, err = env.kube.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, "", err
		}
		return pod.Spec.NodeName != "", workload.Describe(pod), nil
	})
	return pod
}
