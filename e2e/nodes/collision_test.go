// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// twoSchedulers has as many pods as there are GPUs, half of them with each scheduler, all at once. Some GPUs are allocated twice then, and
// yet all pods run in the end.
func twoSchedulers(t *testing.T, ctx context.Context) {
	if !env.hasScheduler() {
		t.Logf("cleave-scheduler does not run with Kubernetes %s", env.cluster.Version())
		return
	}
	gpus := 0
	for _, p := range env.places {
		gpus += len(p.waitSlices(t, ctx))
	}
	for _, scheduler := range []string{"default-scheduler", "cleave-scheduler"} {
		pod := workload.Pod("", "gpu")
		pod.Spec.SchedulerName = scheduler
		set := workload.Deployment(scheduler, int32(gpus/2), map[string]string{"scheduler": scheduler}, pod)
		_, err := env.kube.AppsV1().Deployments(demo).Create(ctx, set, metav1.CreateOptions{})
		must(t, err)
	}
	evicted := map[string]bool{}
	must(t, workload.Until(ctx, "all pods to run", func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: "scheduler"})
		if err != nil {
			return false, "", err
		}
		running := 0
		for i := range list.Items {
			p := &list.Items[i]
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running++
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.DisruptionTarget {
					evicted[p.Name] = true
				}
			}
		}
		claims, err := env.kube.ResourceV1().ResourceClaims(demo).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		// Those of evicted pods go after them.
		return running == gpus && len(list.Items) == gpus && len(claims.Items) == gpus,
			fmt.Sprintf("%d of %d pods run, with %d claims", running, len(list.Items), len(claims.Items)), nil
	}))
	t.Logf("of %d pods, %d were seen evicted", gpus, len(evicted))
	devices := map[string]bool{}
	for pool, names := range allocated(t, ctx) {
		for _, name := range names {
			devices[pool+"/"+name] = true
		}
	}
	if len(devices) != gpus {
		t.Errorf("%d pods run with %d devices", gpus, len(devices))
	}
	must(t, env.kube.AppsV1().Deployments(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	nothingAllocated(t, ctx)
}
