// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// passingPrefix begins the names of pods that come and go.
const passingPrefix = "passing-"

// pass runs a pod of a tier on a node until it runs, and deletes it.
func (p place) pass(ctx context.Context, name, tier string) error {
	pod := workload.Pod(passingPrefix+name, tier)
	if tier == "mps" {
		workload.RunCUDA(pod)
	}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: p.Name()}
	if err := workload.Create(ctx, env.kube, demo, []runtime.Object{pod}); err != nil {
		return err
	}
	if _, err := env.client.WaitRunning(ctx, demo, pod.Name); err != nil {
		return err
	}
	if err := env.kube.CoreV1().Pods(demo).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return env.client.WaitGone(ctx, demo, pod.Name)
}

// rollout replaces the plugins while pods of every tier run on every node, and others come and go.
func rollout(t *testing.T, ctx context.Context) {
	before := waitTiers(t, ctx, env.places)
	plugins, err := podsOf(ctx, "plugin")
	must(t, err)
	supervisors, err := podsOf(ctx, "mps")
	must(t, err)
	var done atomic.Bool
	var passing sync.WaitGroup
	failed, through := make([]error, len(env.places)), make([]atomic.Int64, len(env.places))
	for i, p := range env.places {
		passing.Go(func() {
			names := slices.Sorted(maps.Keys(tiers))
			for n := 0; !done.Load() && failed[i] == nil; n++ {
				tier := names[n%len(names)]
				failed[i] = p.pass(ctx, fmt.Sprintf("%d-%d-%s", i, n, tier), tier)
				through[i].Add(1)
			}
		})
	}
	defer func() { done.Store(true); passing.Wait() }() // where this ends early
	env.helm(t, ctx, env.values(), "upgrade", "cleave", release.Chart(env.source), "--set", "plugin.logVerbosity=5", "--wait", "--timeout", "120s")
	waitPods(t, ctx, "plugin", plugins)
	during := make([]int64, len(through))
	for i := range through {
		during[i] = through[i].Load()
	}
	// With the new plugins, too.
	must(t, workload.Until(ctx, "pods to come and go on every node", func(context.Context) (bool, string, error) {
		ok := true
		for i := range through {
			ok = ok && through[i].Load() >= during[i]+2
		}
		return ok, "", nil
	}))
	done.Store(true)
	passing.Wait()
	must(t, errors.Join(failed...))
	t.Logf("pods that came and went while the plugins were replaced, by node: %v", during)
	if slices.Contains(during, 0) {
		t.Error("on a node none did")
	}
	now, err := podsOf(ctx, "mps")
	must(t, err)
	if diff := cmp.Diff(uids(slices.Collect(maps.Values(supervisors))), uids(slices.Collect(maps.Values(now)))); diff != "" {
		t.Errorf("supervisors (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(uids(before), uids(waitTiers(t, ctx, env.places))); diff != "" {
		t.Errorf("pods that were there (-before +after):\n%s", diff)
	}
	noComplaints(t, ctx)
}

// uids are those of pods, with their restarts, sorted.
func uids(pods []corev1.Pod) []string {
	var list []string
	for _, p := range pods {
		list = append(list, fmt.Sprintf("%s on %s, restarted %d times", p.UID, p.Spec.NodeName, p.Status.ContainerStatuses[0].RestartCount))
	}
	slices.Sort(list)
	return list
}

// noComplaints checks that no pod was the subject of a warning, nor its claim.
func noComplaints(t *testing.T, ctx context.Context) {
	t.Helper()
	lines, err := env.client.Complaints(ctx, demo, "")
	must(t, err)
	for _, line := range lines {
		t.Error(line)
	}
}
