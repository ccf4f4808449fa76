// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// timeout bounds every step of a release's life.
const timeout = 10 * time.Minute

// helmTimeout bounds the wait of one call of Helm. It is less than timeout, so that Helm says what it waits for.
const helmTimeout = "5m"

// toolsTimeout is for tests that may have to build Prometheus first.
const toolsTimeout = 25 * time.Minute

// demo is the namespace of pods that use GPUs.
const demo = "default"

// TestRelease_Lifecycle goes through the life of a release; each step needs those before.
func TestRelease_Lifecycle(t *testing.T) {
	tests.Bound(t, timeout)
	defer removeAfterFailure(t)
	workload.RunSteps(t, timeout, diagnosis, []workload.Step{
		{Name: "install with a capability list", Run: installed},
		{Name: "admission policies are understood", Run: policiesAreTyped},
		{Name: "pods get what they ask for", Run: podsRun},
		{Name: "MPS works with the supervisor's pod", Run: mpsWorks},
		{Name: "helm test", Run: helmTest},
		{Name: "inspect in the plugin's pod", Run: inspectInThePod},
		{Name: "advice of the plugins", Run: adviceOfPlugins},
		{Name: "commands of the documentation", Run: docsRun},
		{Name: "a policy with a typo", Run: policyTypo},
		{Name: "a plugin writes of its own node alone", Run: nodeRestriction},
		{Name: "a plugin cannot read what is not its business", Run: secretsAreSafe},
		{Name: "claims that cannot work are refused", Run: claimAdmission},
		{Name: "finalizers of claims that cannot work", Run: claimFinalizers},
		{Name: "cleave validate refuses what the API server refuses", Run: validateAsServer},
		{Name: "upgrade to a privileged plugin", Run: upgraded},
		{Name: "examples as they are", Run: examplesAsTheyAre},
		{Name: "policies of the release, picked by a node's label", Run: policiesApply},
		{Name: "uninstall without allocations", Run: uninstalled},
	})
}

// The API server takes all that the chart can be.
func TestChart_Admitted(t *testing.T) {
	ctx := tests.Bound(t, timeout)
	for name, values := range matrix {
		var manifest strings.Builder
		for _, o := range mustRender(t, values) {
			if group, _, _ := strings.Cut(o.GetAPIVersion(), "/"); group == "monitoring.coreos.com" || group == "cert-manager.io" {
				continue // the cluster has no Prometheus operator, and no cert-manager
			}
			data, err := yaml.Marshal(o.Object)
			must(t, err)
			manifest.WriteString("---\n" + string(data))
		}
		out, err := env.client.Kubectl(ctx, manifest.String(), "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
		if err != nil || strings.Contains(out, "Warning") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	out, err := env.client.Kubectl(ctx, "", "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", filepath.Join(manifestDir, "install.yaml"), "-f", filepath.Join(manifestDir, "deviceclasses.yaml"), "--force-conflicts")
	if err != nil || strings.Contains(out, "Warning") {
		t.Errorf("the plain manifests: %v: %s", err, out)
	}
}

func installed(t *testing.T, ctx context.Context) { installedWith(t, ctx, env.values(false)) }

// installedWith installs a release, and waits until it offers GPUs.
func installedWith(t *testing.T, ctx context.Context, values string) {
	t.Helper()
	const nobody = "nodes: {match: [{key: nobody.example.com/has, operator: Exists}]}"
	if notes := helmOn(t, nobody, "install", "cleave", chartDir, "--dry-run=server"); !strings.Contains(notes, "NO NODE HAS A LABEL") {
		t.Errorf("the notes do not say that no node fits: %s", notes)
	}
	notes := helmOn(t, values, "install", "cleave", chartDir, "--create-namespace", "--wait", "--timeout", helmTimeout)
	for _, says := range []string{"rollout status daemonset/cleave-plugin", "helm test cleave"} {
		if !strings.Contains(notes, says) {
			t.Errorf("the notes do not say %q: %s", says, notes)
		}
	}
	if strings.Contains(notes, "NO NODE") {
		t.Errorf("the notes do not see that a node has the label: %s", notes)
	}
	for _, component := range []string{"plugin", "mps"} {
		// Helm does not wait for DaemonSets that are updated on delete.
		pod := onlyPod(t, ctx, component, ready)
		if restarts := pod.Status.ContainerStatuses[0].RestartCount; restarts > 0 {
			t.Errorf("pod %s has restarted %d times", pod.Name, restarts)
		}
	}
	must(t, env.client.WaitSlices(ctx, workload.Driver, nil))
	log, err := env.cluster.PodLogs(ctx, namespace, podOf(t, ctx, "plugin").Name, "plugin")
	must(t, err)
	for _, bad := range []string{"forbidden", "read-only file system", "permission denied", "operation not permitted"} {
		if strings.Contains(strings.ToLower(log), bad) {
			t.Errorf("the plugin's log says %q:\n%s", bad, log)
		}
	}
}

// policiesAreTyped checks that the API server found nothing to object to in the CEL of the policies.
func policiesAreTyped(t *testing.T, ctx context.Context) {
	for _, name := range []string{"cleave-resourceslices", "cleave-claim-status", "cleave-claims", "cleave-claim-warnings", "cleave-pod-warnings", "cleave-mps-warnings"} {
		must(t, workload.Until(ctx, "the check of policy "+name, func(ctx context.Context) (bool, string, error) {
			p, err := env.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
			if err != nil || p.Status.TypeChecking == nil {
				return false, "not checked", err
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("%s, %s: %s", name, w.FieldRef, w.Warning)
			}
			return true, "", nil
		}))
	}
}

// example makes the objects of a file of deployments/examples and waits until its pods run.
func example(t *testing.T, ctx context.Context, name string, change func(*corev1.Pod)) []*corev1.Pod {
	t.Helper()
	objects, err := workload.Load(filepath.Join("../../deployments/examples", name+".yaml"))
	must(t, err)
	var pods []*corev1.Pod
	for _, o := range objects {
		pod, isPod := o.(*corev1.Pod)
		if isPod && change != nil {
			change(pod)
		}
		create(t, ctx, o)
		if isPod { // one after the other, so that shares gather on one GPU
			running := runs(t, ctx, pod.Name)
			pods = append(pods, running)
		}
	}
	return pods
}

// hasStatus waits until the claims of a pod tell what their devices are, which the plugin writes with the rights of its
// ServiceAccount.
func hasStatus(t *testing.T, ctx context.Context, pod *corev1.Pod) {
	t.Helper()
	names := []string{}
	for _, c := range pod.Status.ResourceClaimStatuses {
		names = append(names, *c.ResourceClaimName)
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		names = append(names, extended.ResourceClaimName)
	}
	for _, name := range names {
		must(t, workload.Until(ctx, "the status of claim "+name, func(ctx context.Context) (bool, string, error) {
			claim, err := env.kube.ResourceV1().ResourceClaims(demo).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			return len(claim.Status.Devices) == len(claim.Status.Allocation.Devices.Results), "no devices", nil
		}))
	}
}

func podsRun(t *testing.T, ctx context.Context) {
	for name, want := range map[string]struct {
		gpus, capabilities int
		says               string
	}{
		"one-gpu":                  {gpus: 1},
		"mig-extended-resource":    {gpus: 1, capabilities: 4},
		"timeslice-four-notebooks": {gpus: 1, says: "CLEAVE_SHARES=1"},
	} {
		for _, pod := range example(t, ctx, name, nil) {
			seen, err := env.client.Look(ctx, demo, pod.Name, pod.Spec.Containers[0].Name)
			must(t, err)
			if len(seen.GPUNodes()) != want.gpus || len(seen.Capabilities()) != want.capabilities {
				t.Errorf("pod %s sees %v, want %d GPUs and %d capability nodes", pod.Name, seen.DeviceNodes, want.gpus, want.capabilities)
			}
			if diff := cmp.Diff([]string{"/usr/lib/x86_64-linux-gnu/libcuda.so.1"}, seen.Libraries); diff != "" {
				t.Errorf("libraries that pod %s finds (-want +got):\n%s", pod.Name, diff)
			}
			hasStatus(t, ctx, pod)
			if want.says != "" && !slices.Contains(seen.Environment, want.says) {
				t.Errorf("pod %s has the environment %v, want %s", pod.Name, seen.Environment, want.says)
			}
		}
	}
	// nvidia-smi was run below the driver's root, by which the interval of time slices is set.
	objects, err := workload.Decode([]byte(intervalPod))
	must(t, err)
	must(t, workload.Create(ctx, env.kube, demo, objects))
	runs(t, ctx, "interval")
}

// intervalPod asks for long time slices.
const intervalPod = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: interval}
spec:
  spec:
    devices:
      requests: [{name: gpu, exactly: {deviceClassName: timeslice.cleave.dev}}]
      config:
        - opaque:
            driver: gpu.cleave.dev
            parameters: {apiVersion: gpu.cleave.dev/v1alpha1, kind: ShareConfig, timeSlice: {interval: Long}}
---
apiVersion: v1
kind: Pod
metadata: {name: interval}
spec:
  restartPolicy: Never
  containers: [{name: main, image: busybox, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimTemplateName: interval}]
`

// servers are the MPS servers of the two services, which are one.
func servers(t *testing.T, ctx context.Context) int {
	t.Helper()
	a := served(t, ctx, "embeddings")
	b := served(t, ctx, "chat")
	if a.Server != b.Server || a.Threads != 25 || b.Memory != 36<<30 {
		t.Errorf("the services are served as %+v and %+v", a, b)
	}
	return a.Server
}

func mpsWorks(t *testing.T, ctx context.Context) {
	example(t, ctx, "mps-two-services", func(pod *corev1.Pod) { workload.RunCUDA(pod) })
	server := servers(t, ctx)
	group := readFile(t, fmt.Sprintf("/proc/%d/cgroup", server))
	if env.cgroups != "" && !strings.Contains(string(group), "/cleave-mps/") {
		t.Errorf("the MPS server has the cgroups %s, want one of its own", group)
	}
}

func helmTest(t *testing.T, _ context.Context) {
	if out := helmOn(t, "", "test", "cleave", "--timeout", helmTimeout); !strings.Contains(out, "Phase:          Succeeded") {
		t.Errorf("helm test says %s", out)
	}
}

func upgraded(t *testing.T, ctx context.Context) {
	server, plugin, supervisor := servers(t, ctx), podOf(t, ctx, "plugin"), podOf(t, ctx, "mps").Name
	helmOn(t, env.values(true), "upgrade", "cleave", chartDir, "--wait", "--timeout", helmTimeout)
	onlyPod(t, ctx, "plugin", otherThan(plugin))
	if got := podOf(t, ctx, "mps").Name; got != supervisor {
		t.Errorf("the supervisor's pod is %s after the upgrade, want still %s", got, supervisor)
	}
	if got := servers(t, ctx); got != server {
		t.Errorf("the MPS server is %d after the upgrade, want still %d", got, server)
	}
	// What the old plugin prepared the new one gives back, and prepares anew.
	must(t, env.kube.CoreV1().Pods(demo).Delete(ctx, "one-gpu", metav1.DeleteOptions{}))
	must(t, env.client.WaitGone(ctx, demo, "one-gpu"))
	example(t, ctx, "one-gpu", nil)
}

// policiesApply has no allocations, so that what policies withdraw goes at once.
func policiesApply(t *testing.T, ctx context.Context) {
	emptyDemo(t, ctx)
	helmOn(t, env.values(true)+"policies: {default: {rules: [{tiers: [exclusive, timeSlice]}]}, whole: {rules: [{tiers: [exclusive]}]}}\n",
		"upgrade", "cleave", chartDir, "--wait", "--timeout", helmTimeout)
	offers := func(want ...string) {
		t.Helper()
		must(t, workload.Until(ctx, fmt.Sprintf("the node to offer %v", want), func(ctx context.Context) (bool, string, error) {
			list, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, "", err
			}
			var types []string
			for i := range list.Items {
				for _, d := range list.Items[i].Spec.Devices {
					types = append(types, *d.Attributes["type"].StringValue)
				}
			}
			slices.Sort(types)
			types = slices.Compact(types)
			return slices.Equal(types, want), fmt.Sprint(types), nil
		}))
	}
	offers("gpu", "timeslice")
	kubectl(t, ctx, "label", "node", env.cluster.NodeName(), "gpu.cleave.dev/policy=whole")
	// A release that has no policy of this name would offer nothing.
	defer func() {
		_, err := env.client.Kubectl(context.WithoutCancel(ctx), "", "label", "node", env.cluster.NodeName(), "gpu.cleave.dev/policy-")
		must(t, err)
	}()
	offers("gpu")
}

func uninstalled(t *testing.T, ctx context.Context) {
	must(t, workload.Until(ctx, "nothing to be allocated", func(context.Context) (bool, string, error) {
		kept, err := filepath.Glob(filepath.Join(claimsDir(), "*.json"))
		kept = slices.DeleteFunc(kept, func(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") })
		return len(kept) == 0, strings.Join(kept, " "), err
	}))
	server := filepath.Join(env.cgroups, "cleave-mps")
	uninstall(t, ctx)
	// Of the directories that the kubelet made to mount them, nobody knows whether others use them.
	for _, dir := range []string{filepath.Join(env.cluster.PluginsDir(), "gpu.cleave.dev"), filepath.Join(env.cluster.PluginsDir(), "gpu.nvidia.com"), filepath.Join(env.cluster.PluginsDir(), "_cleave"), env.cluster.RegistryDir(), env.cluster.CDIDir(), env.MPSDir, env.HookDir()} {
		left, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for _, e := range left {
			t.Errorf("%s is left", filepath.Join(dir, e.Name()))
		}
	}
	if _, err := os.Stat(server); env.cgroups != "" && err == nil {
		t.Errorf("the cgroup %s is left", server)
	}
	processes, err := process.List()
	must(t, err)
	for _, p := range processes {
		if strings.HasPrefix(p.Command, "/usr/bin/cleave-node ") || strings.Contains(p.Command, "nvidia-cuda-mps") {
			t.Errorf("process %d is left: %q", p.PID, p.Command)
		}
	}
	nothingInTheCluster(t, ctx)
}
