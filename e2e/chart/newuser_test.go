// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const examplesDir = source + "/deployments/examples"

// rounds are the examples, those together that fit one node, however the scheduler spreads shares that come at once.
var rounds = [][]string{
	{"one-gpu", "four-gpus", "mig-extended-resource", "mig-first-available"},
	{"timeslice-four-notebooks", "mps-two-services", "mig-or-mps"},
	{"topology-four-nvlink", "shared-claim", "mig-pair-4g-3g"},
	{"topology-two-numa", "extended-resource", "seven-small-pods", "mig-one-parent", "quota", "topology-gpu-and-nic", "mig-mps-services"},
}

// pending are the pods of examples that wait: for the class of a network driver, which is not here, and for a policy that
// shares partitions.
var pending = []string{"topology-gpu-and-nic", "small-service-1", "small-service-2"}

// examplesAsTheyAre applies every example as a user does, image, command and all, and deletes it again.
func examplesAsTheyAre(t *testing.T, ctx context.Context) {
	emptyDemo(t, ctx)
	for _, names := range rounds {
		var files []string
		for _, name := range names {
			files = append(files, "-f", filepath.Join(examplesDir, name+".yaml"))
		}
		kubectl(t, ctx, append([]string{"apply"}, files...)...)
		for _, name := range names {
			objects, err := workload.Load(filepath.Join(examplesDir, name+".yaml"))
			must(t, err)
			for _, o := range objects {
				if pod, ok := o.(*corev1.Pod); ok && !slices.Contains(pending, pod.Name) {
					runs(t, ctx, pod.Name)
				}
			}
		}
		kubectl(t, ctx, append([]string{"delete", "--wait=true"}, files...)...)
	}
}

func TestExamples_Complete(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(examplesDir, "*.yaml"))
	must(t, err)
	var there []string
	for _, file := range files {
		there = append(there, strings.TrimSuffix(filepath.Base(file), ".yaml"))
	}
	if diff := cmp.Diff(there, slices.Sorted(slices.Values(slices.Concat(rounds...)))); diff != "" {
		t.Errorf("examples (-there +tried):\n%s", diff)
	}
}

// inspectInThePod runs cleave inspect without flags where the plugin runs.
func inspectInThePod(t *testing.T, ctx context.Context) {
	example(t, ctx, "one-gpu", nil)
	wanted := []string{"This machine: 8 GPUs", "NVIDIA H100 80GB HBM3", demo + "/one-gpu", "built-in"}
	// What would be missing where the flags are not the plugin's: records, partitions by MPS, the API server's view.
	unwanted := []string{"--kubelet-plugins-dir", "no records", "unmanaged", "supervisor does not answer"}
	must(t, workload.Until(ctx, "cleave inspect to show all there is", func(ctx context.Context) (bool, string, error) {
		out, err := env.client.Kubectl(ctx, "", "--namespace", namespace, "exec", "daemonset/cleave-plugin", "--", "cleave-node", "inspect")
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // it may be well a moment later
		}
		lacks := slices.DeleteFunc(slices.Clone(wanted), func(s string) bool { return strings.Contains(out, s) })
		has := slices.DeleteFunc(slices.Clone(unwanted), func(s string) bool { return !strings.Contains(out, s) })
		return len(lacks)+len(has) == 0, fmt.Sprintf("%q is not, and %q is in\n%s", lacks, has, out), nil
	}))
}

// adviceOfPlugins asks the chart's plugins, over the API server, what a pod uses: nothing, and that for too short a time.
func adviceOfPlugins(t *testing.T, ctx context.Context) {
	example(t, ctx, "one-gpu", nil)
	must(t, workload.Until(ctx, "cleave advise to have figures of a pod", func(ctx context.Context) (bool, string, error) {
		command := exec.CommandContext(ctx, filepath.Join(source, "bin", "cleave"), "advise", "--kubeconfig", env.cluster.Kubeconfig())
		out, err := command.CombinedOutput()
		return strings.Contains(string(out), "Pod/one-gpu") && strings.Contains(string(out), "TooLittleSeen"), string(out), err
	}))
}

// releaseState is what an upgrade changes: DaemonSets have a generation, and ConfigMaps have data.
func releaseState(t *testing.T, ctx context.Context) string {
	t.Helper()
	state, err := env.client.Kubectl(ctx, "", "--namespace", namespace, "get", "daemonsets,configmaps", "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.generation} {.data}{"\n"}{end}`)
	must(t, err)
	return state
}

// policyTypo tries to upgrade to a policy that has a mistake.
func policyTypo(t *testing.T, ctx context.Context) {
	before := releaseState(t, ctx)
	for _, policies := range []string{
		"policies: {default: {rules: [{timeSlice: {share: 4}}]}}\n",
		"policies: {default: \"apiVersion: gpu.cleave.dev/v1alpha1\\nkind: NodePolicy\\nrules: [{timeSlice: {share: 4}}]\\n\"}\n",
	} {
		for _, args := range [][]string{{"upgrade", "cleave", chartDir}, {"install", "another", chartDir}} {
			_, err := env.Helm(ctx, env.values(true)+policies, args...)
			if err == nil || !strings.Contains(err.Error(), "policies.default: rules[0].timeSlice.share: unknown field") {
				t.Errorf("helm %s: got %v, want an error that names the field", args[0], err)
			}
		}
	}
	if diff := cmp.Diff(before, releaseState(t, ctx)); diff != "" {
		t.Errorf("the release was changed (-before +after):\n%s", diff)
	}
}
