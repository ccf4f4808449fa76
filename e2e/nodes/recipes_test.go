// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/tools/podfile"
)

// team is the namespace of the recipe for quotas.
const team = "team-a"

// recipes applies those of docs/recipes.md as they are published, with an image that is here in place of theirs, and sees that each keeps
// its promise. Of kinds whose controllers are not here, the pods are made from the templates.
func recipes(t *testing.T, ctx context.Context) {
	if !env.hasScheduler() {
		t.Skipf("recipes are for Kubernetes 1.37, not %s", env.cluster.Version())
	}
	for _, r := range []struct {
		name string
		// copies of pods whose controller is not here; 1 if 0.
		copies int
		holds  func(*testing.T, context.Context)
	}{
		{"two-containers", 0, twoContainers}, {"replicas-apart", 0, replicasApart}, {"replicas-apart-one-node", 0, replicasApartOneNode},
		{"vllm", 0, vllm}, {"triton", 0, has("triton", "mig-2g.20gb.cleave.dev", 1, 1)}, {"ray", 0, has("ray-0", "mig-3g.40gb.cleave.dev", 1, 1)},
		{"kubeflow-notebook", 0, has("notebook-0", "timeslice.cleave.dev", 1, 1)}, {"jobset", 2, has("training-", "gpu.cleave.dev", 4, 2)},
		{"leaderworkerset", 0, has("llama-", "gpu.cleave.dev", 8, 2)}, {"gpu-memory-service", 0, memoryService},
	} {
		t.Run(r.name, func(t *testing.T) {
			manifest := recipe(t, r.name, max(1, r.copies))
			kubectl(t, ctx, manifest, "apply", "-f", "-")
			r.holds(t, ctx)
			kubectl(t, ctx, manifest, "delete", "--ignore-not-found", "-f", "-")
			nothingAllocated(t, ctx)
		})
	}
	t.Run("team-quota", func(t *testing.T) { teamQuota(t, ctx) })
}

// kubectl applies or deletes a manifest in the namespace of pods, unless its objects name one.
func kubectl(t *testing.T, ctx context.Context, manifest string, args ...string) {
	t.Helper()
	_, err := env.client.Kubectl(ctx, manifest, append([]string{"--namespace", demo}, args...)...)
	must(t, err)
}

// recipe is a published manifest whose pods can run here; words of it are replaced, as its comments say.
func recipe(t *testing.T, name string, copies int, replace ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(env.release.Source, "deployments", "examples", "recipes", name+".yaml"))
	must(t, err)
	items := []any{}
	for document := range strings.SplitSeq(strings.NewReplacer(replace...).Replace(string(data)), "\n---\n") {
		raw, err := yaml.YAMLToJSON([]byte(document))
		must(t, err)
		items = append(items, runnable(t, raw, copies)...)
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	must(t, err)
	return string(list)
}

// runnable are the objects in place of one.
func runnable(t *testing.T, raw []byte, copies int) (objects []any) {
	t.Helper()
	of := metav1.PartialObjectMetadata{}
	must(t, json.Unmarshal(raw, &of))
	group := of.GroupVersionKind().Group
	switch found, err := podfile.In(raw); {
	case err != nil:
		t.Fatal(err)
	case of.Kind == "Deployment":
		d := &appsv1.Deployment{}
		must(t, json.Unmarshal(raw, d))
		standIn(&d.Spec.Template.Spec)
		return []any{d}
	case len(found) > 0:
		for i := range found {
			if !podfile.Asks(&found[i].Spec) {
				continue
			}
			for range copies {
				pod := found[i].DeepCopy()
				pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
				if of.Kind != "Pod" {
					pod.Name = fmt.Sprintf("%s-%d", of.Name, len(objects))
				}
				standIn(&pod.Spec)
				objects = append(objects, pod)
			}
		}
		return objects
	case strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io"):
		return nil
	}
	object := map[string]any{}
	must(t, json.Unmarshal(raw, &object))
	return []any{object}
}

// standIn gives a pod the local image, and takes what only its own needs.
func standIn(spec *corev1.PodSpec) {
	spec.Volumes = nil
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			c := &list[i]
			c.Args, c.VolumeMounts, c.ReadinessProbe, c.StartupProbe = nil, nil, nil, nil
			for _, of := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				delete(of, corev1.ResourceCPU)
				delete(of, corev1.ResourceMemory)
			}
		}
	}
	workload.MakeLocal(spec)
}

// running waits until so many pods that a function selects run, and no others are there, and returns them.
func running(t *testing.T, ctx context.Context, n int, selected func(*corev1.Pod) bool) (pods []corev1.Pod) {
	t.Helper()
	must(t, workload.Until(ctx, fmt.Sprintf("%d pods to run", n), func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		var states []string
		ready := 0
		pods = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !selected(&p) })
		for i := range pods {
			states = append(states, pods[i].Name+" on "+pods[i].Spec.NodeName+": "+workload.Describe(&pods[i]))
			if pods[i].Status.Phase == corev1.PodRunning && pods[i].DeletionTimestamp == nil {
				ready++
			}
		}
		return ready == n && len(pods) == n, strings.Join(states, "\n"), nil
	}))
	return pods
}

func all(*corev1.Pod) bool { return true }

func devices(t *testing.T, ctx context.Context, pod *corev1.Pod) []workload.Allocated {
	t.Helper()
	found, err := env.client.Devices(ctx, pod)
	must(t, err)
	return found
}

func nodesOf(pods []corev1.Pod) map[string]int {
	nodes := map[string]int{}
	for i := range pods {
		nodes[pods[i].Spec.NodeName]++
	}
	return nodes
}

// has is the promise that pods have so many devices of a class each, and are on so many nodes.
func has(name, class string, count, nodes int) func(*testing.T, context.Context) {
	return func(t *testing.T, ctx context.Context) {
		pods := running(t, ctx, nodes, func(p *corev1.Pod) bool { return strings.HasPrefix(p.Name, name) })
		for i := range pods {
			found := devices(t, ctx, &pods[i])
			if len(found) != count || found[0].Class != class {
				t.Errorf("pod %s has %+v, want %d of class %s", pods[i].Name, found, count, class)
			}
		}
		if got := nodesOf(pods); len(got) != nodes {
			t.Errorf("they are on %v, want %d nodes", got, nodes)
		}
	}
}

// twoContainers: each container has the share of its own request, of one GPU.
func twoContainers(t *testing.T, ctx context.Context) {
	pods := running(t, ctx, 1, all)
	found := devices(t, ctx, &pods[0])
	if len(found) != 2 || packing.GPUOf(found[0].Device) != packing.GPUOf(found[1].Device) || found[0].Request == found[1].Request {
		t.Errorf("the pod has %+v, want two shares of one GPU", found)
	}
	for container, cores := range map[string]string{"generator": "60", "embedder": "20"} {
		seen, err := env.client.Look(ctx, demo, pods[0].Name, container)
		must(t, err)
		if want := "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + cores; !slices.Contains(seen.Environment, want) {
			t.Errorf("container %s has %q, want %s", container, seen.Environment, want)
		}
	}
}

// memoryService: the server and both engines have the same two GPUs.
func memoryService(t *testing.T, ctx context.Context) {
	pods := running(t, ctx, 1, all)
	found := devices(t, ctx, &pods[0])
	if len(found) != 2 {
		t.Fatalf("the pod has %+v, want two GPUs", found)
	}
	uuids := "CLEAVE_GPU_UUID=" + found[0].UUID + "," + found[1].UUID
	for _, container := range []string{"gms-server", "engine-0", "engine-1"} {
		seen, err := env.client.Look(ctx, demo, pods[0].Name, container)
		must(t, err)
		if len(seen.GPUNodes()) != 2 || !slices.Contains(seen.Environment, uuids) {
			t.Errorf("container %s has %+v, want the GPUs of %s", container, seen, uuids)
		}
	}
}

func replicasApart(t *testing.T, ctx context.Context) {
	if got := nodesOf(running(t, ctx, 3, all)); len(got) != 3 {
		t.Errorf("three replicas are on %v, want three nodes", got)
	}
}

func replicasApartOneNode(t *testing.T, ctx context.Context) {
	pods := running(t, ctx, 2, all)
	found := devices(t, ctx, &pods[0])
	if len(nodesOf(pods)) != 1 || len(found) != 2 || packing.GPUOf(found[0].Device) == packing.GPUOf(found[1].Device) {
		t.Errorf("two replicas are on %v and have %+v, want one node and two GPUs", nodesOf(pods), found)
	}
}

// vllm is drained, as the recipe for it says.
func vllm(t *testing.T, ctx context.Context) {
	pods := running(t, ctx, 1, all)
	if found := devices(t, ctx, &pods[0]); len(found) != 1 || found[0].Class != "mps.cleave.dev" {
		t.Errorf("the server has %+v", found)
	}
	kubectl(t, ctx, "", "scale", "deployment", "vllm", "--replicas=2")
	pods = running(t, ctx, 2, all)
	node := pods[0].Spec.NodeName
	rule := recipe(t, "drain", 1, "gpu-7", node)

	// New claims stay off the node's GPUs, and running pods stay.
	kubectl(t, ctx, rule, "apply", "-f", "-")
	pinned := workload.Tiers[1].Pod("pinned", "mig")
	pinned.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	must(t, workload.Create(ctx, env.kube, demo, []runtime.Object{workload.Tiers[1].Template("mig"), pinned}))
	_, err := env.client.WaitPod(ctx, demo, "pinned", "be refused", func(p *corev1.Pod) (bool, error) {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}), nil
	})
	must(t, err)
	servers := func(p *corev1.Pod) bool { return p.Labels["app"] == "vllm" }
	if diff := cmp.Diff(nodesOf(pods), nodesOf(running(t, ctx, 2, servers))); diff != "" {
		t.Errorf("servers by node (-before +after):\n%s", diff)
	}

	// kubectl drain waits for the budget, and both come elsewhere.
	kubectl(t, ctx, "", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=vllm", "--timeout=5m")
	if got := nodesOf(running(t, ctx, 2, servers)); got[node] != 0 {
		t.Errorf("after the drain of %s the servers are on %v", node, got)
	}
	if got := allocated(t, ctx)[node]; len(got) > 0 {
		t.Errorf("allocated on the drained node: %v", got)
	}
	kubectl(t, ctx, "", "uncordon", node)
	kubectl(t, ctx, rule, "delete", "-f", "-")
	_, err = env.client.WaitRunning(ctx, demo, "pinned")
	must(t, err)
	kubectl(t, ctx, "", "delete", "pod/pinned", "resourceclaimtemplate/mig")

	// With NoExecute, pods go without regard to the budget.
	pods = running(t, ctx, 2, servers)
	node = pods[0].Spec.NodeName
	evicting := recipe(t, "drain", 1, "gpu-7", node, "NoSchedule", "NoExecute")
	kubectl(t, ctx, evicting, "apply", "-f", "-")
	must(t, workload.Until(ctx, "the servers to leave "+node, func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: "app=vllm"})
		return err == nil && nodesOf(list.Items)[node] == 0, fmt.Sprint(nodesOf(list.Items)), err
	}))
	running(t, ctx, 2, servers)
	kubectl(t, ctx, evicting, "delete", "-f", "-")
}

// teamQuota: the team gets what it has been given of each class, and no more, by claims and by extended resources.
func teamQuota(t *testing.T, ctx context.Context) {
	manifest := recipe(t, "team-quota", 1)
	kubectl(t, ctx, manifest, "apply", "-f", "-", "--namespace", team)
	must(t, workload.Until(ctx, "the quota to be counted", func(ctx context.Context) (bool, string, error) {
		q, err := env.kube.CoreV1().ResourceQuotas(team).Get(ctx, "gpus", metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) == len(q.Spec.Hard), fmt.Sprint(q.Status.Used), err
	}))
	claim := func(name, class string, count int64) error {
		_, err := env.kube.ResourceV1().ResourceClaims(team).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: workload.ClaimSpec(class, count),
		}, metav1.CreateOptions{})
		return err
	}
	pod := func(name, resourceName, count string) error {
		p := workload.Pod(name, "")
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse(count)}
		_, err := env.kube.CoreV1().Pods(team).Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	for _, c := range []struct {
		what    string
		err     error
		refused bool
	}{
		{"a GPU by claim", claim("one", workload.Driver, 1), false},
		{"a GPU by resource", pod("two", "nvidia.com/gpu", "1"), false},
		{"a third GPU by claim", claim("three", workload.Driver, 1), true},
		{"a third GPU by resource", pod("three", "nvidia.com/gpu", "1"), true},
		{"seven partitions", claim("seven", "mig-1g.10gb.cleave.dev", 7), false},
		{"an eighth", claim("eight", "mig-1g.10gb.cleave.dev", 1), true},
		{"four shares", pod("four", "nvidia.com/gpu.shared", "4"), false},
		{"a fifth", pod("five", "nvidia.com/gpu.shared", "1"), true},
		{"a class with 0", claim("mps", "mps.cleave.dev", 1), true},
	} {
		if refused := apierrors.IsForbidden(c.err) && strings.Contains(c.err.Error(), "exceeded quota: gpus"); refused != c.refused || c.err != nil && !refused {
			t.Errorf("%s: got %v, want it refused by the quota: %t", c.what, c.err, c.refused)
		}
	}
	_, err := env.client.WaitRunning(ctx, team, "two")
	must(t, err)
	kubectl(t, ctx, manifest, "delete", "-f", "-", "--namespace", team)
	for _, p := range env.places {
		must(t, env.release.WaitHolds(ctx, p.index))
	}
}
