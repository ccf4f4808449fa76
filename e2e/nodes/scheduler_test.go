// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// partitions are the pods that the scheduler places: two more than fit on a GPU.
const partitions = 9

// scheduled packs pods with partitions on as few GPUs as they fit on, and spreads others over the nodes.
func scheduled(t *testing.T, ctx context.Context) {
	// What the steps before have, the scheduler must not pack with.
	must(t, env.kube.AppsV1().Deployments(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	nothingAllocated(t, ctx)
	if !env.hasScheduler() {
		t.Logf("cleave-scheduler does not run with Kubernetes %s", env.cluster.Version())
		return
	}
	for _, tt := range []struct {
		placement string
		gpus      int   // how many have partitions, 0 for any number
		nodes     []int // how many partitions each has
	}{
		{"pack", 2, []int{9}}, {"spread", 0, []int{3, 3, 3}},
	} {
		for i := range partitions {
			pod := workload.Pod(fmt.Sprintf("%s-%d", tt.placement, i), "mig")
			pod.Spec.SchedulerName = "cleave-scheduler"
			pod.Annotations = map[string]string{"gpu.cleave.dev/placement": tt.placement}
			must(t, workload.Create(ctx, env.kube, demo, []runtime.Object{pod}))
		}
		for i := range partitions {
			_, err := env.client.WaitRunning(ctx, demo, fmt.Sprintf("%s-%d", tt.placement, i))
			must(t, err)
		}
		gpus, nodes := map[string]int{}, []int{}
		pools := allocated(t, ctx)
		for _, pool := range slices.Sorted(maps.Keys(pools)) {
			nodes = append(nodes, len(pools[pool]))
			for _, device := range pools[pool] {
				gpu, _, _ := strings.Cut(device, "-mig-")
				gpus[pool+"/"+gpu]++
			}
		}
		if diff := cmp.Diff(tt.nodes, nodes); diff != "" {
			t.Errorf("%s: partitions by node (-want +got):\n%s", tt.placement, diff)
		}
		if tt.gpus != 0 && len(gpus) != tt.gpus {
			t.Errorf("%s: partitions by GPU: %v, want them on %d", tt.placement, gpus, tt.gpus)
		}
		must(t, env.kube.CoreV1().Pods(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		nothingAllocated(t, ctx)
	}
}

// nothingAllocated waits until the pods have gone, with their claims and what the nodes had for them.
func nothingAllocated(t *testing.T, ctx context.Context) {
	t.Helper()
	must(t, env.client.WaitGone(ctx, demo, ""))
	must(t, env.client.WaitNoClaims(ctx, demo))
	for _, p := range env.places {
		must(t, env.release.WaitHolds(ctx, p.index))
	}
}
