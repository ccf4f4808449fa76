// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

func installed(t *testing.T, ctx context.Context) {
	if env.hasScheduler() {
		must(t, release.ImportScheduler(ctx, env.cluster, env.release.Source))
	}
	env.helm(t, ctx, env.values(), "install", "cleave", release.Chart(env.release.Source), "--wait", "--timeout", "300s")
	waitPods(t, ctx, "plugin", nil)
	waitPods(t, ctx, "mps", nil)
	published := map[string]string{}
	for _, p := range env.places {
		for _, uuid := range p.waitSlices(t, ctx) {
			if other, there := published[uuid]; there {
				t.Errorf("GPU %s is of %s and of %s", uuid, other, p.Name())
			}
			published[uuid] = p.Name()
		}
	}
}

// podsOf are the pods of a component that are not about to go, by node.
func podsOf(ctx context.Context, component string) (map[string]corev1.Pod, error) {
	list, err := env.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil {
		return nil, err
	}
	pods := map[string]corev1.Pod{}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			pods[p.Spec.NodeName] = p
		}
	}
	return pods, nil
}

// waitPods waits until every node has a pod of a component that is ready, and none of those that were there before.
func waitPods(t *testing.T, ctx context.Context, component string, before map[string]corev1.Pod) {
	t.Helper()
	must(t, workload.Until(ctx, "a pod of "+component+" on every node", func(ctx context.Context) (bool, string, error) {
		pods, err := podsOf(ctx, component)
		if err != nil {
			return false, "", err
		}
		var missing []string
		for _, p := range env.places {
			pod := pods[p.Name()]
			old, had := before[p.Name()]
			if len(pod.Status.ContainerStatuses) != 1 || !pod.Status.ContainerStatuses[0].Ready || had && old.UID == pod.UID {
				missing = append(missing, p.Name()+": "+workload.Describe(&pod))
			}
		}
		return len(missing) == 0, strings.Join(missing, "\n"), nil
	}))
}

// deployment has a pod of a tier for each node that takes pods, as far as there are replicas.
func deployment(tier workload.Tier) *appsv1.Deployment {
	return workload.Spread(tier.Type, int32(len(env.places)), map[string]string{"tier": tier.Type}, tier.Pod("", tier.Type))
}

// everyTier runs pods that stay until the node is lost and after.
func everyTier(t *testing.T, ctx context.Context) {
	for _, tier := range workload.Tiers {
		must(t, workload.Create(ctx, env.kube, demo, []runtime.Object{tier.Template(tier.Type)}))
		_, err := env.kube.AppsV1().Deployments(demo).Create(ctx, deployment(tier), metav1.CreateOptions{})
		must(t, err)
	}
	pods := waitTiers(t, ctx, env.places)
	for _, p := range pods {
		if p.Labels["tier"] == "mps" {
			_, err := env.client.Served(ctx, demo, p.Name)
			must(t, err)
			continue
		}
		seen, err := env.client.Look(ctx, demo, p.Name, "main")
		must(t, err)
		if len(seen.GPUNodes()) != 1 || len(seen.Libraries) != 1 || (p.Labels["tier"] == "mig") != (len(seen.Capabilities()) > 0) {
			t.Errorf("pod %s on %s sees %+v", p.Name, p.Spec.NodeName, seen)
		}
	}
	for _, p := range env.places {
		kinds, err := p.holdings(ctx)
		must(t, err)
		for _, kind := range everyKind {
			if len(kinds[kind]) == 0 {
				t.Errorf("node %s has no %s", p.Name(), kind)
			}
		}
		if got := len(kinds["records"]); got != len(workload.Tiers) {
			t.Errorf("node %s has %d records, want one for each of its %d claims", p.Name(), got, len(workload.Tiers))
		}
	}
}

// waitTiers waits until the replicas of all tiers run on some nodes, evenly, and returns them.
func waitTiers(t *testing.T, ctx context.Context, on []place) (pods []corev1.Pod) {
	t.Helper()
	must(t, workload.Until(ctx, fmt.Sprintf("pods of all tiers on %d nodes", len(on)), func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: "tier"})
		if err != nil {
			return false, "", err
		}
		pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		running := map[string]int{}
		var others []string
		for i := range pods {
			if p := &pods[i]; p.Status.Phase == corev1.PodRunning && p.Status.ContainerStatuses[0].Ready {
				running[p.Spec.NodeName]++
			} else {
				others = append(others, p.Name+" on "+p.Spec.NodeName+": "+workload.Describe(p))
			}
		}
		want := len(workload.Tiers) * len(env.places)
		ok := len(pods) == want && len(others) == 0
		for _, p := range on {
			ok = ok && running[p.Name()] >= want/len(env.places)
			delete(running, p.Name())
		}
		return ok && len(running) == 0, strings.Join(others, "\n"), nil
	}))
	return pods
}

// uninstalled has no allocations: those of the steps before are gone.
func uninstalled(t *testing.T, ctx context.Context) {
	env.helm(t, ctx, "", "uninstall", "cleave", "--wait", "--timeout", "300s")
	must(t, env.client.WaitGone(ctx, namespace, ""))
	plugins := env.cluster.PluginsDir()
	for _, p := range env.places {
		for _, dir := range []string{filepath.Join(plugins, workload.Driver), filepath.Join(plugins, "_cleave"), env.cluster.RegistryDir(), env.cluster.CDIDir(), env.release.MPSDir} {
			if diff := cmp.Diff([]string(nil), p.entries(t, dir)); diff != "" {
				t.Errorf("what is left in %s of node %s (-want +got):\n%s", dir, p.Name(), diff)
			}
		}
	}
}
