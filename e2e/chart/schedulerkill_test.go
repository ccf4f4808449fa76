// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// paper are nodes that publish GPUs and have no kubelet, so that pods only have to be placed.
var paper = []string{"paper-1", "paper-2", "paper-3"}

// leaderKilled kills the process that leads while pods are under way, and creates more while nobody leads: all are placed, no
// device is allocated twice, and they are as tight as if nothing had happened.
func leaderKilled(t *testing.T, ctx context.Context) {
	addPaperNodes(t, ctx)
	create(t, ctx, workload.Template("paper", workload.ClaimSpec("mig-1g.10gb.cleave.dev", 1)))
	before := leader(t, ctx, namespace, schedulerName)
	createPaperPods(t, ctx, 0, 24)
	must(t, workload.Until(ctx, "the first pods to be placed", func(ctx context.Context) (bool, string, error) {
		n, _, err := paperPods(ctx)
		return n > 0, fmt.Sprint(n), err
	}))
	kill(t, before.Name)
	n, _, err := paperPods(ctx)
	must(t, err)
	t.Logf("%d of 24 pods were placed when the leader was killed", n)
	createPaperPods(t, ctx, 24, 40)
	var nodes map[string]int
	must(t, workload.Until(ctx, "all pods to be placed", func(ctx context.Context) (ok bool, state string, err error) {
		n, nodes, err = paperPods(ctx)
		return n == 40, fmt.Sprint(n), err
	}))
	devices, gpus := map[string]string{}, map[string]bool{}
	claims, err := env.kube.ResourceV1().ResourceClaims(demo).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, c := range claims.Items {
		if !strings.HasPrefix(c.Name, "paper-") || c.Status.Allocation == nil {
			continue
		}
		r := c.Status.Allocation.Devices.Results[0]
		if other, twice := devices[r.Pool+"/"+r.Device]; twice {
			t.Errorf("device %s of %s is allocated to %s and %s", r.Device, r.Pool, other, c.Name)
		}
		devices[r.Pool+"/"+r.Device] = c.Name
		gpus[r.Pool+"/"+packing.GPUOf(r.Device)] = true
	}
	if len(devices) != 40 || len(gpus) != 6 || len(nodes) != 1 {
		t.Errorf("40 pods have %d devices of %d GPUs on nodes %v, want 6 GPUs of one node", len(devices), len(gpus), nodes)
	}
	removePaperNodes(t, ctx)
}

func addPaperNodes(t *testing.T, ctx context.Context) {
	t.Helper()
	published, err := packing.PublishedByModel(ctx, model, nil)
	must(t, err)
	real, err := env.kube.CoreV1().Nodes().Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	must(t, err)
	for _, name := range paper {
		nodes := env.kube.CoreV1().Nodes()
		_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"paper": "yes"}}}, metav1.CreateOptions{})
		must(t, err)
		must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error { // controllers write to it, too
			node, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			node.Status.Capacity, node.Status.Allocatable = real.Status.Capacity, real.Status.Allocatable
			_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
			return err
		}))
		for _, s := range packing.ForNode(published, name) {
			_, err := env.kube.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{})
			must(t, err)
		}
	}
}

func createPaperPods(t *testing.T, ctx context.Context, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		pod := workload.Pod(fmt.Sprintf("paper-%02d", i), "paper")
		pod.Spec.SchedulerName = schedulerName
		pod.Spec.NodeSelector = map[string]string{"paper": "yes"}
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // nobody says that the nodes are ready
		create(t, ctx, pod)
	}
}

// paperPods counts the pods that are placed, also by node.
func paperPods(ctx context.Context) (placed int, nodes map[string]int, err error) {
	list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, nil, err
	}
	nodes = map[string]int{}
	for _, p := range list.Items {
		if strings.HasPrefix(p.Name, "paper-") && p.Spec.NodeName != "" {
			nodes[p.Spec.NodeName]++
			placed++
		}
	}
	return placed, nodes, nil
}

// removePaperNodes removes the nodes and what was placed on them: no kubelet confirms that a pod has ended.
func removePaperNodes(t *testing.T, ctx context.Context) {
	t.Helper()
	now := int64(0)
	must(t, env.kube.CoreV1().Pods(demo).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	must(t, env.client.WaitGone(ctx, demo, ""))
	for _, name := range paper {
		must(t, env.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		must(t, env.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}))
	}
}

// kill ends a scheduler's process as a crash does.
func kill(t *testing.T, pod string) {
	t.Helper()
	all, err := process.List()
	must(t, err)
	for _, p := range all {
		if strings.HasPrefix(p.Command+" ", "/usr/bin/cleave-scheduler ") && strings.Contains("\x00"+p.Environment, "\x00HOSTNAME="+pod+"\x00") {
			must(t, syscall.Kill(p.PID, syscall.SIGKILL))
			return
		}
	}
	t.Fatalf("no process of pod %s", pod)
}
