// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

func lostNode(t *testing.T, ctx context.Context) (lost place, others []place) {
	t.Helper()
	schedulers, err := podsOf(ctx, "scheduler")
	must(t, err)
	for _, p := range env.places {
		if _, hasIt := schedulers[p.Name()]; !hasIt && lost.gpus == nil {
			lost = p
		} else {
			others = append(others, p)
		}
	}
	return lost, others
}

// setTaints replaces the taints of a node that are an administrator's.
func (p place) setTaints(t *testing.T, ctx context.Context, taints ...corev1.Taint) {
	t.Helper()
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the node's controller writes taints, too
		n, err := env.kube.CoreV1().Nodes().Get(ctx, p.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
		n.Spec.Taints = append(n.Spec.Taints, taints...)
		_, err = env.kube.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	}))
}

// nodeLost kills a node whose GPUs are in use. Nothing moves until an administrator says that it is out of service.
func nodeLost(t *testing.T, ctx context.Context) {
	lost, others := lostNode(t, ctx)
	must(t, lost.Kill(ctx))
	must(t, workload.Until(ctx, "node "+lost.Name()+" to be missed", func(ctx context.Context) (bool, string, error) {
		n, err := env.kube.CoreV1().Nodes().Get(ctx, lost.Name(), metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		unreachable := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable })
		return unreachable, fmt.Sprint(n.Spec.Taints), nil
	}))
	if got := allocated(t, ctx)[lost.Name()]; len(got) != len(workload.Tiers) {
		t.Errorf("allocated on the lost node: %v, want still a device for each of its %d claims, whose pods may run", got, len(workload.Tiers))
	}
	lost.setTaints(t, ctx, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
	must(t, workload.Until(ctx, "the lost node's pods and claims to go", func(ctx context.Context) (bool, string, error) {
		pods, err := env.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + lost.Name()})
		if err != nil {
			return false, "", err
		}
		claims := allocated(t, ctx)[lost.Name()]
		return len(pods.Items)+len(claims) == 0, fmt.Sprintf("%d pods, devices %v", len(pods.Items), claims), nil
	}))
	waitTiers(t, ctx, others)
}

// nodeBack starts the node again. Its hardware and its disk are as they were when it was lost; nobody needs what they hold.
func nodeBack(t *testing.T, ctx context.Context) {
	lost, others := lostNode(t, ctx)
	must(t, lost.Boot(ctx))
	must(t, lost.Component(cluster.Containerd).Start(ctx))
	kinds, err := lost.holdings(ctx)
	must(t, err)
	for _, kind := range []string{"records", "CDI specs", "partitions", "compute modes"} {
		if len(kinds[kind]) == 0 {
			t.Errorf("the node has no stale %s: what follows shows nothing", kind)
		}
	}
	must(t, lost.Component(cluster.Kubelet).Start(ctx))
	lost.setTaints(t, ctx)
	waitPods(t, ctx, "plugin", nil)
	waitPods(t, ctx, "mps", nil)
	must(t, env.release.WaitHolds(ctx, lost.index))
	lost.waitSlices(t, ctx)
	for _, tier := range workload.Tiers {
		must(t, lost.pass(ctx, "back", tier))
	}
	must(t, env.release.WaitHolds(ctx, lost.index))
	if sockets := lost.entries(t, env.cluster.RegistryDir()); len(sockets) != 1 {
		t.Errorf("sockets of plugins are %v, want that of the one that runs", sockets)
	}
	for _, p := range waitTiers(t, ctx, others) {
		if restarts := p.Status.ContainerStatuses[0].RestartCount; restarts > 0 {
			t.Errorf("pod %s on %s restarted %d times", p.Name, p.Spec.NodeName, restarts)
		}
	}
}
