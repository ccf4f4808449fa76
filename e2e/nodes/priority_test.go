// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// saved is what a pod of the backfill leaves when it is told to end.
const saved = "checkpoint saved"

// queues are the priorities of three queues.
var queues = map[string]int32{"interactive": 1000, "batch": 500, "backfill": -1000}

// prioritized fills all GPUs with backfill. Interactive and batch pods bump it, which ends gracefully and comes back when they have gone.
func prioritized(t *testing.T, ctx context.Context) {
	if !env.hasScheduler() {
		t.Logf("cleave-scheduler does not run with Kubernetes %s", env.cluster.Version())
		return
	}
	for name, value := range queues {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		_, err := env.kube.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{})
		must(t, err)
	}
	gpus := 0
	for _, p := range env.places {
		gpus += len(p.waitSlices(t, ctx))
	}
	_, err := env.kube.AppsV1().Deployments(demo).Create(ctx, backfill(int32(gpus)), metav1.CreateOptions{})
	must(t, err)
	backfillRuns(t, ctx, gpus)

	ended := endedGracefully(t, ctx)
	for _, queue := range []string{"batch", "interactive"} {
		pod := workload.Pod(queue, "gpu")
		pod.Spec.SchedulerName, pod.Spec.PriorityClassName = "cleave-scheduler", queue
		must(t, workload.Create(ctx, env.kube, demo, []runtime.Object{pod}))
		running, err := env.client.WaitRunning(ctx, demo, queue)
		must(t, err)
		seen, err := env.client.Look(ctx, demo, queue, "main")
		must(t, err)
		if len(seen.GPUNodes()) != 1 {
			t.Errorf("pod %s on %s sees %+v", queue, running.Spec.NodeName, seen)
		}
	}
	if names := ended(); len(names) != 2 {
		t.Errorf("pods %v of the backfill have ended gracefully, want 2", names)
	}
	backfillRuns(t, ctx, gpus-2)
	for _, queue := range []string{"batch", "interactive"} {
		must(t, env.kube.CoreV1().Pods(demo).Delete(ctx, queue, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
	}
	backfillRuns(t, ctx, gpus)
	for _, prefix := range []string{"backfill", "batch", "interactive"} { // others are of steps before
		complaints, err := env.client.Complaints(ctx, demo, prefix)
		must(t, err)
		for _, c := range complaints {
			t.Error(c.Text)
		}
	}
	must(t, env.kube.AppsV1().Deployments(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	nothingAllocated(t, ctx)
}

// backfill has a pod for each GPU, which saves its work when it is told to end.
func backfill(replicas int32) *appsv1.Deployment {
	pod := workload.Pod("", "gpu")
	pod.Spec.SchedulerName, pod.Spec.PriorityClassName = "cleave-scheduler", "backfill"
	pod.Spec.TerminationGracePeriodSeconds = new(int64(300))
	pod.Spec.Containers[0].Command = []string{"sh", "-c", `trap 'sleep 2; echo -n "` + saved + `" > /dev/termination-log; exit 0' TERM; while :; do sleep 1; done`}
	return workload.Deployment("backfill", replicas, map[string]string{"queue": "backfill"}, pod)
}

// backfillRuns waits until so many pods of the backfill run, and no more.
func backfillRuns(t *testing.T, ctx context.Context, n int) {
	t.Helper()
	must(t, workload.Until(ctx, fmt.Sprintf("%d pods of the backfill to run", n), func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: "queue=backfill"})
		if err != nil {
			return false, "", err
		}
		running := 0
		for i := range list.Items {
			if list.Items[i].Status.Phase == corev1.PodRunning && list.Items[i].DeletionTimestamp == nil {
				running++
			}
		}
		return running == n, fmt.Sprintf("%d run", running), nil
	}))
}

// endedGracefully watches the pods of the backfill. What it returns ends that, and returns those that were preempted and left their message.
func endedGracefully(t *testing.T, ctx context.Context) (ended func() []string) {
	t.Helper()
	list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: "queue=backfill"})
	must(t, err)
	watch, err := env.kube.CoreV1().Pods(demo).Watch(ctx, metav1.ListOptions{LabelSelector: "queue=backfill", ResourceVersion: list.ResourceVersion})
	must(t, err)
	found, done := map[string]bool{}, make(chan struct{})
	go func() {
		defer close(done)
		for event := range watch.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			for _, s := range pod.Status.ContainerStatuses {
				if s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 && strings.Contains(s.State.Terminated.Message, saved) && preempted(pod) {
					found[pod.Name] = true
				}
			}
		}
	}()
	return func() []string {
		watch.Stop()
		<-done
		return slices.Sorted(maps.Keys(found))
	}
}

func preempted(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonPreemptionByScheduler {
			return true
		}
	}
	return false
}
