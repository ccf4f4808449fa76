// SPDX-License-Identifier: Apache-2.0

package launchers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// requesters is how many the recipe has. Each has a launcher of its own while its model is awake.
const requesters = 2

// TestLaunchers runs the recipe while another pod has a device: on the GPUs of the built-in policy by cleave-scheduler, and on whole GPUs
// alone, which have no counters, by kube-scheduler.
func TestLaunchers(t *testing.T) {
	for _, tt := range []struct{ name, rules, scheduler, neighbor string }{
		{"cleave-scheduler", "[]", "cleave-scheduler", "mig-1g.10gb.cleave.dev"},
		{"kube-scheduler", "[{tiers: [exclusive]}]", corev1.DefaultSchedulerName, "gpu.cleave.dev"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := tests.Bound(t, timeout)
			r := &run{t: t, ctx: ctx, scheduler: tt.scheduler}
			must(t, env.offer(tt.rules))
			r.uuids = r.published(tt.scheduler == corev1.DefaultSchedulerName)
			r.assign()
			r.start("neighbor", tt.neighbor, 1)
			manifest := r.recipe()
			_, err := env.client.Kubectl(ctx, manifest, "apply", "-f", "-")
			must(t, err)
			r.awake()
			r.asleep()
			r.scale(requesters)
			r.awake()
			_, err = env.client.Kubectl(ctx, manifest, "delete", "-f", "-")
			must(t, err)
			r.stop("neighbor")
			must(t, env.client.WaitNoClaims(ctx, metav1.NamespaceAll))
		})
	}
}

// run is a test with the recipe.
type run struct {
	t         *testing.T
	ctx       context.Context
	scheduler string
	// uuids are those of the node's GPUs.
	uuids []string
}

// published waits until the node offers its GPUs as the policy says, whole GPUs alone or everything, and returns their UUIDs.
func (r *run) published(whole bool) (uuids []string) {
	r.t.Helper()
	must(r.t, env.client.WaitSlices(r.ctx, workload.Driver, func(pool []resourceapi.ResourceSlice) bool {
		uuids = nil
		others := 0
		for i := range pool {
			for _, d := range pool[i].Spec.Devices {
				if kind := d.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
					uuids = append(uuids, *d.Attributes["uuid"].StringValue)
				} else {
					others++
				}
			}
		}
		return len(uuids) == 8 && (others == 0) == whole && int64(len(pool)) == pool[0].Spec.Pool.ResourceSliceCount
	}))
	slices.Sort(uuids)
	return uuids
}

// assign gives pods for GPUs to a scheduler, by the chart's policy.
func (r *run) assign() {
	r.t.Helper()
	render := exec.CommandContext(r.ctx, env.bin("helm"), "template", "cleave", filepath.Join(env.source, "deployments", "helm", "cleave"),
		"--kube-version", env.client.Cluster.Version(), "--set", "scheduler.enabled=true", "--show-only", "templates/admission-scheduler.yaml")
	policies, err := render.Output()
	must(r.t, err)
	verb := []string{"apply", "-f", "-"}
	if r.scheduler == corev1.DefaultSchedulerName {
		verb = []string{"delete", "--ignore-not-found", "-f", "-"}
	}
	_, err = env.client.Kubectl(r.ctx, string(policies), verb...)
	must(r.t, err)
	must(r.t, workload.Until(r.ctx, "pods to go to "+r.scheduler, func(ctx context.Context) (bool, string, error) {
		pod, err := env.client.Kube.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, workload.Pod("whose", "any"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && pod.Spec.SchedulerName == r.scheduler, "", err
	}))
}

// recipe is the published manifest, with the CPU and memory of this machine.
func (r *run) recipe() string {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(env.source, "deployments", "examples", "recipes", "fast-model-actuation.yaml"))
	must(r.t, err)
	return strings.NewReplacer(`cpu: "4"`, `cpu: "10m"`, `cpu: "8"`, `cpu: "1"`, `cpu: "100m"`, `cpu: "10m"`,
		`memory: "8Gi"`, `memory: "10Mi"`, `memory: "16Gi"`, `memory: "1Gi"`, `memory: "128Mi"`, `memory: "10Mi"`).Replace(string(data))
}

// start runs a pod of nobody's, and returns the UUIDs of its GPUs, none of partitions.
func (r *run) start(name, class string, count int64) (uuids []string) {
	r.t.Helper()
	must(r.t, workload.Create(r.ctx, env.client.Kube, metav1.NamespaceDefault,
		[]runtime.Object{workload.Template(name, workload.ClaimSpec(class, count)), workload.Pod(name, name)}))
	pod, err := env.client.WaitRunning(r.ctx, metav1.NamespaceDefault, name)
	must(r.t, err)
	if pod.Spec.SchedulerName != r.scheduler {
		r.t.Errorf("pod %s is of scheduler %s", name, pod.Spec.SchedulerName)
	}
	devices, err := env.client.Devices(r.ctx, pod)
	must(r.t, err)
	for _, d := range devices {
		uuids = append(uuids, d.UUID)
	}
	return uuids
}

// refused creates a pod for which there is no GPU.
func (r *run) refused(name string) {
	r.t.Helper()
	must(r.t, workload.Create(r.ctx, env.client.Kube, metav1.NamespaceDefault,
		[]runtime.Object{workload.Template(name, workload.ClaimSpec(workload.Driver, 1)), workload.Pod(name, name)}))
	_, err := env.client.WaitPod(r.ctx, metav1.NamespaceDefault, name, "find no GPU", func(p *corev1.Pod) (bool, error) {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}), nil
	})
	must(r.t, err)
}

// stop undoes start.
func (r *run) stop(names ...string) {
	r.t.Helper()
	for _, name := range names {
		_, err := env.client.Kubectl(r.ctx, "", "delete", "-n", metav1.NamespaceDefault, "pod/"+name, "resourceclaimtemplate/"+name)
		must(r.t, err)
	}
}

// pods waits until so many pods with a label are ready, and no others are there.
func (r *run) pods(label string, n int) (pods []corev1.Pod) {
	r.t.Helper()
	must(r.t, workload.Until(r.ctx, fmt.Sprintf("%d ready pods with %s", n, label), func(ctx context.Context) (bool, string, error) {
		list, err := env.client.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
		if err = errors.Join(err, env.running()); err != nil {
			return false, "", err
		}
		pods = list.Items
		ready := 0
		var states []string
		for i := range pods {
			states = append(states, pods[i].Name+": "+workload.Describe(&pods[i]))
			if slices.ContainsFunc(pods[i].Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) && pods[i].DeletionTimestamp == nil {
				ready++
			}
		}
		return ready == n && len(pods) == n, strings.Join(states, "\n"), nil
	}))
	return pods
}

// instance is one of vLLM that a launcher has.
type instance struct {
	UUIDs []string `json:"gpu_uuids"`
	Slept int      `json:"slept"`
}

// launchers waits until there are so many, checks that each sees every GPU of the node, and returns the instances of all.
func (r *run) launchers(n int) (all []instance) {
	r.t.Helper()
	for _, pod := range r.pods("app.kubernetes.io/component=launcher", n) {
		seen, err := env.client.LookInside(r.ctx, namespace, pod.Name, "inference-server")
		must(r.t, err)
		variables := map[string]string{}
		for _, line := range seen.Environment {
			name, value, _ := strings.Cut(line, "=")
			variables[name] = value
		}
		uuids := slices.Sorted(slices.Values(strings.Split(variables["CLEAVE_GPU_UUID"], ",")))
		if diff := cmp.Diff(r.uuids, uuids); diff != "" || len(seen.GPUNodes()) != len(r.uuids) || variables["NVIDIA_VISIBLE_DEVICES"] != "void" {
			r.t.Errorf("launcher %s sees %+v; GPUs (-of the node +its):\n%s", pod.Name, seen, diff)
		}
		var has struct {
			Instances []instance `json:"instances"`
		}
		_, text, err := process.Read(r.ctx, "http://"+net.JoinHostPort(pod.Status.PodIP, "8001")+"/v2/vllm/instances", "")
		must(r.t, err)
		must(r.t, json.Unmarshal([]byte(text), &has))
		all = append(all, has.Instances...)
	}
	return all
}

// awake: every requester is ready, as a launcher serves on its GPU. Nobody else gets these GPUs.
func (r *run) awake() {
	r.t.Helper()
	owners := map[string]string{}
	for _, pod := range r.pods("app=fma-requester", requesters) {
		devices, err := env.client.Devices(r.ctx, &pod)
		must(r.t, err)
		if len(devices) != 1 || owners[devices[0].UUID] != "" {
			r.t.Fatalf("requester %s has %+v, want a GPU of its own: %v", pod.Name, devices, owners)
		}
		owners[devices[0].UUID] = pod.Name
	}
	instances := r.launchers(requesters)
	for uuid, requester := range owners {
		if !slices.ContainsFunc(instances, func(i instance) bool { return slices.Equal(i.UUIDs, []string{uuid}) }) {
			r.t.Errorf("no launcher has an instance on GPU %s of requester %s alone: %+v", uuid, requester, instances)
		}
	}
	rest := len(r.uuids) - requesters - 1 // a neighbor has one, or a part of it
	for _, uuid := range r.start("rest", workload.Driver, int64(rest)) {
		if owners[uuid] != "" {
			r.t.Errorf("GPU %s of requester %s is another's, too", uuid, owners[uuid])
		}
	}
	r.refused("late")
	r.stop("rest", "late")
}

// asleep: without requesters the launcher that is left has a model that sleeps, on a GPU that is free for all. One that is made anew sees a
// GPU that is closed to claims, too.
func (r *run) asleep() {
	r.t.Helper()
	r.scale(0)
	must(r.t, workload.Until(r.ctx, "a model to sleep", func(context.Context) (bool, string, error) {
		instances := r.launchers(1)
		return len(instances) == 1 && instances[0].Slept == 1, fmt.Sprintf("%+v", instances), nil
	}))
	r.start("meanwhile", workload.Driver, int64(len(r.uuids)-1))
	r.stop("meanwhile")
	r.cleave("cordon", "GPU7")
	_, err := env.client.Kubectl(r.ctx, "", "delete", "pod", "-n", namespace, "-l", "app.kubernetes.io/component=launcher")
	must(r.t, err)
	if instances := r.launchers(1); len(instances) > 0 {
		r.t.Errorf("a new launcher has %+v", instances)
	}
	r.cleave("uncordon", "GPU7")
}

func (r *run) scale(n int) {
	r.t.Helper()
	_, err := env.client.Kubectl(r.ctx, "", "scale", "deployment", "fma-requester", "-n", namespace, fmt.Sprint("--replicas=", n))
	must(r.t, err)
	if n == 0 {
		r.pods("app=fma-requester", 0)
	}
}

// cleave runs a command about a GPU of the node.
func (r *run) cleave(verb, gpu string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.ctx, env.bin("cleave"), verb, env.client.Cluster.NodeName(), gpu, "--kubeconfig", env.client.Cluster.Kubeconfig())
	out, err := cmd.CombinedOutput()
	if err != nil {
		must(r.t, fmt.Errorf("cleave %s: %w: %s", verb, err, out))
	}
}
