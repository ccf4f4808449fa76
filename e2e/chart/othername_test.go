// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// renameTimeout bounds the switch of the driver's name in one direction: the kubelet keeps slices for half a minute, and
// the plugin serves the name that it had for half a minute after the last claim.
const renameTimeout = 10 * time.Minute

// TestDriverName_SwitchedUnderPods runs manifests for NVIDIA's driver by its name. Then it switches the name under running pods of all
// tiers, back, and to and fro before the first switch is over. Nothing is allocated twice, every pod can end, and new pods run.
//
// A release that is installed by NVIDIA's name has its extended resource. By an upgrade it may have none until kube-scheduler restarts:
// its cache forgets what two classes had one after the other (updateResourceName2class in k8s.io/dynamic-resource-allocation,
// deviceclass/extendedresourcecache).
func TestDriverName_SwitchedUnderPods(t *testing.T) {
	ctx := tests.Bound(t, timeout)
	defer removeAfterFailure(t)
	const own, nvidias = workload.Driver, "gpu.nvidia.com"
	helmOn(t, env.values(false)+"nvidiaCompatible: true\n", "install", "cleave", chartDir, "--create-namespace")
	must(t, env.client.WaitSlices(ctx, nvidias, nil))
	onlyPod(t, ctx, "mps", ready)
	workload.RunSteps(t, renameTimeout, diagnosis, []workload.Step{
		{Name: "manifests written for NVIDIA's driver", Run: compatible},
		{Name: "to Cleave's", Run: func(t *testing.T, ctx context.Context) { switchName(t, ctx, nvidias, own) }},
		// Back to the name before while the new plugin still waits for the slices of the old one to go.
		{Name: "to and fro", Run: func(t *testing.T, ctx context.Context) { switchName(t, ctx, own, nvidias, own) }},
		{Name: "to NVIDIA's", Run: func(t *testing.T, ctx context.Context) { switchName(t, ctx, own, nvidias) }},
		{Name: "uninstall", Run: uninstalled},
	})
}

// upgradeName has the driver go by a name, and waits until one plugin of that name is all there is.
func upgradeName(t *testing.T, ctx context.Context, driver string) {
	t.Helper()
	before, compatible := podOf(t, ctx, "plugin"), strconv.FormatBool(driver == "gpu.nvidia.com")
	helmOn(t, env.values(false), "upgrade", "cleave", chartDir, "--set", "nvidiaCompatible="+compatible, "--wait", "--timeout", helmTimeout)
	onlyPod(t, ctx, "plugin", otherThan(before))
}

// publishedBy waits until a driver, and no other, publishes devices of the node. A slice without any may stay for as long as its
// driver's name is served.
func publishedBy(t *testing.T, ctx context.Context, driver string) {
	t.Helper()
	must(t, workload.Until(ctx, "ResourceSlices of "+driver+" alone", func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		devices, drivers := 0, []string{}
		for i := range list.Items {
			if n := len(list.Items[i].Spec.Devices); n > 0 || list.Items[i].Spec.SharedCounters != nil {
				drivers = append(drivers, list.Items[i].Spec.Driver)
				devices += n
			}
		}
		slices.Sort(drivers)
		drivers = slices.Compact(drivers)
		return slices.Equal(drivers, []string{driver}) && devices > 8, fmt.Sprintf("%d devices of %v", devices, drivers), nil
	}))
}

// ofEachTier makes pods that have a whole GPU, a partition and shares, and one whose claim is allocated a whole GPU and
// cannot be prepared.
func ofEachTier(t *testing.T, ctx context.Context, driver string) (pods map[string]*corev1.Pod, sees map[string]string) {
	t.Helper()
	pods, sees = holding(t, ctx, []wish{{name: "whole", class: "gpu.cleave.dev"}, {name: "small", class: "mig.cleave.dev"},
		{name: "share", class: "timeslice.cleave.dev"}, {name: "mps", class: "mps.cleave.dev"}})
	// Of Cleave's own classes it is known what their parameters may be, and the API server refuses the claim.
	own := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: churnPrefix + "own-class"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.driver == %q && device.attributes[%q].type == 'gpu'", driver, driver),
		}}},
	}}
	create(t, ctx, own)
	t.Cleanup(func() {
		must(t, env.kube.ResourceV1().DeviceClasses().Delete(context.Background(), own.Name, metav1.DeleteOptions{}))
	})
	waiting := wish{name: "waiting", class: own.Name}
	template := waiting.template()
	template.Spec.Spec = workload.WithParameters(template.Spec.Spec, driver, `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig","timeSlice":{"interval":"Long"}}`)
	pod := waiting.pod("waiting")
	create(t, ctx, template, pod)
	refused(t, ctx, pod.Name, "FailedPrepareDynamicResources", "timeSlice")
	must(t, env.kube.ResourceV1().ResourceClaimTemplates(demo).Delete(ctx, template.Name, metav1.DeleteOptions{}))
	pods["waiting"] = pod
	return pods, sees
}

// wholeGPUs is a pod that has so many GPUs for itself.
func wholeGPUs(t *testing.T, ctx context.Context, n int) *corev1.Pod {
	t.Helper()
	w := wish{name: fmt.Sprintf("gpus-%d", n), class: "gpu.cleave.dev"}
	template := w.template()
	template.Spec.Spec.Devices.Requests[0].Exactly.Count = int64(n)
	pod := w.pod(w.name)
	pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", lookAgain}
	create(t, ctx, template, pod)
	return pod
}

// gpusOf are the nodes of GPUs of what a pod sees.
func gpusOf(sees string) []string {
	return slices.DeleteFunc(strings.Fields(sees), func(path string) bool { return strings.Contains(path, "caps") })
}

// switchName switches the driver's name under pods of all tiers, to the last of some names by way of the others.
func switchName(t *testing.T, ctx context.Context, from string, to ...string) {
	t.Helper()
	pods, sees := ofEachTier(t, ctx, from)
	for _, driver := range to {
		upgradeName(t, ctx, driver)
	}
	publishedBy(t, ctx, to[len(to)-1])

	// Of eight GPUs five are allocated under the name before.
	all := wholeGPUs(t, ctx, 8)
	refused(t, ctx, all.Name, "FailedScheduling", "cannot allocate all claims")
	free := wholeGPUs(t, ctx, 3)
	runs(t, ctx, free.Name)
	new := gpusOf(seesNow(t, ctx, free.Name))
	if len(new) != 3 {
		t.Errorf("a pod with three GPUs sees %v", new)
	}
	for name, before := range sees {
		for _, g := range gpusOf(before) {
			if slices.Contains(new, g) {
				t.Errorf("%s, of pod %s, was allocated twice", g, name)
			}
		}
		undisturbed(t, ctx, pods[name], before)
	}
	if _, err := env.client.Served(ctx, demo, pods["mps"].Name); err != nil {
		t.Error(err)
	}
	refused(t, ctx, all.Name, "FailedScheduling", "cannot allocate all claims")

	endPods(t, ctx, slices.Collect(maps.Values(pods))...)
	endPods(t, ctx, free)
	runs(t, ctx, all.Name)
	if got := gpusOf(seesNow(t, ctx, all.Name)); len(got) != 8 {
		t.Errorf("a pod with all GPUs sees %v", got)
	}
	endPods(t, ctx, all)
	emptyDemo(t, ctx)
	waitNoClaims(t, ctx)
	for _, driver := range append(to, from) {
		if driver != to[len(to)-1] {
			nothingOf(t, ctx, driver)
		}
	}
}

// nothingOf waits until the state of a driver's name is gone from the node.
func nothingOf(t *testing.T, ctx context.Context, driver string) {
	t.Helper()
	must(t, workload.Until(ctx, "the state of "+driver+" to go", func(context.Context) (bool, string, error) {
		left, err := os.ReadDir(filepath.Join(env.cluster.PluginsDir(), driver))
		if os.IsNotExist(err) {
			return true, "", nil
		}
		sockets, globErr := filepath.Glob(filepath.Join(env.cluster.RegistryDir(), driver+"*"))
		specs, specsErr := filepath.Glob(filepath.Join(env.cluster.CDIDir(), driver+"*"))
		for _, problem := range []error{err, globErr, specsErr} {
			if problem != nil {
				return false, "", problem
			}
		}
		return len(left)+len(sockets)+len(specs) == 0, fmt.Sprint(left, sockets, specs), nil
	}))
}
