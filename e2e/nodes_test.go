// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

func TestNodes_SchedulerPicksNode(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.newPlainNode(ctx, func(o *corev1.Node) {
		o.Spec.Unschedulable = false
		o.Labels = map[string]string{"e2e": s.name}
	})
	s.sim(ctx, n, "create", "--node", "a30")
	s.must(n.Start(ctx))
	s.offers(ctx, n, 2)
	// The kubelet-less node gets the size of a real one.
	object, err := env.kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	s.must(err)
	real, err := env.kube.CoreV1().Nodes().Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	s.must(err)
	object.Status.Capacity, object.Status.Allocatable = real.Status.Capacity, real.Status.Allocatable
	_, err = env.kube.CoreV1().Nodes().UpdateStatus(ctx, object, metav1.UpdateOptions{})
	s.must(err)

	a30 := `device.attributes["gpu.cleave.dev"].productName.contains("A30")`
	everywhere := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	there, elsewhere := gpuPod("there", 1, a30), gpuPod("elsewhere", 1, a30)
	podOf(there).Spec.Tolerations = everywhere
	podOf(elsewhere).Spec.Tolerations = everywhere
	podOf(elsewhere).Spec.NodeSelector = map[string]string{corev1.LabelHostname: env.cluster.NodeName()}
	s.create(ctx, append(there, elsewhere...)...)
	t.Cleanup(func() {
		now := int64(0) // nobody else ends a pod of a node without a kubelet
		_ = env.kube.CoreV1().Pods(s.name).Delete(context.WithoutCancel(ctx), "there", metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	var pod *corev1.Pod
	s.eventually(ctx, "the pod to be scheduled", func(ctx context.Context) (bool, string, error) {
		var err error
		if pod, err = env.kube.CoreV1().Pods(s.name).Get(ctx, "there", metav1.GetOptions{}); err != nil {
			return false, "", err
		}
		return pod.Spec.NodeName != "", workload.Describe(pod), nil
	})
	if pod.Spec.NodeName != n.name {
		t.Errorf("a pod for an A30 went to node %s, want %s", pod.Spec.NodeName, n.name)
	}
	if message := s.unschedulable(ctx, "elsewhere"); !strings.Contains(message, "1 cannot allocate all claims") {
		t.Errorf("the scheduler says %q of a pod for an A30 on the H100 node", message)
	}
	claim, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, ownClaim(pod), metav1.GetOptions{})
	s.must(err)
	wire := &drapb.Claim{Namespace: s.name, Name: claim.Name, Uid: string(claim.UID)}
	if devices := s.prepared(ctx, n, wire, 1); devices[0].DeviceName != s.deviceNames(ctx, n)[0] {
		t.Errorf("the pod got %v, want the last GPU of its node", devices)
	}
	s.must(n.Unprepare(ctx, wire))
}
