// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// The plugin's DaemonSet names the classes of the release, whichever these are.
func TestChart_DeviceClassesAnnotation(t *testing.T) {
	for name, values := range map[string]string{
		"defaults": "", "compatible": "nvidiaCompatible: true", "two boards": "deviceClasses: {migProfiles: {boards: [A30, H100-80], disabled: [1g.10gb+me]}}",
		"one class":                  "deviceClasses: {mig: {enabled: false}, timeSlice: {enabled: false}, mps: {enabled: false}, migProfiles: {enabled: false}}",
		"compatible, no partitions":  "nvidiaCompatible: true\ndeviceClasses: {mig: {enabled: false}}",
		"compatible shares, no GPUs": "nvidiaCompatible: true\nnvidiaConsumableShares: true\ndeviceClasses: {gpu: {enabled: false}}",
		"none":                       "deviceClasses: {gpu: {enabled: false}, mig: {enabled: false}, timeSlice: {enabled: false}, mps: {enabled: false}, migProfiles: {enabled: false}}",
	} {
		t.Run(name, func(t *testing.T) {
			objects := mustRender(t, values)
			var want []string
			for _, o := range objects {
				if o.GetKind() == "DeviceClass" {
					want = append(want, o.GetName())
				}
			}
			var got []string
			if names := typed[appsv1.DaemonSet](t, objects, "DaemonSet", "cleave-plugin").Annotations[cluster.ClassesAnnotation]; names != "" {
				got = strings.Split(names, ",")
			}
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("classes (-rendered +annotation):\n%s", diff)
			}
		})
	}
}

// Where no class of NVIDIA's has nvidia.com/gpu, Cleave's own has it.
func TestChart_ResourceOfWholeGPUs(t *testing.T) {
	objects := mustRender(t, "nvidiaCompatible: true\nnvidiaConsumableShares: true\ndeviceClasses: {timeSlice: {enabled: false}}")
	if got := typed[resourceapi.DeviceClass](t, objects, "DeviceClass", "gpu.cleave.dev").Spec.ExtendedResourceName; got == nil || *got != "nvidia.com/gpu" {
		t.Errorf("class gpu.cleave.dev has the extended resource %v", got)
	}
}

// classesDeleted: DeviceClasses that somebody deletes are reported, once, until an upgrade has restored them. An upgrade that removes
// classes and the end of a release are no news.
func classesDeleted(t *testing.T, ctx context.Context) {
	missing := func(want string) {
		t.Helper()
		must(t, workload.Until(ctx, want+" missing classes", func(ctx context.Context) (bool, string, error) {
			got, err := metric(ctx, podOf(t, ctx, "plugin"), "cleave_device_classes_missing")
			return err == nil && got == want, fmt.Sprint(got, " ", err), nil
		}))
	}
	missing("0")
	// This installation's, as those before it may have left Events, too.
	plugin, err := env.kube.AppsV1().DaemonSets(namespace).Get(ctx, "cleave-plugin", metav1.GetOptions{})
	must(t, err)
	classes := env.kube.ResourceV1().DeviceClasses()
	list, err := classes.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=cleave"})
	must(t, err)
	must(t, classes.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=cleave"}))
	waitEvent(t, ctx, plugin, "DeviceClassesMissing", "do not exist", "gpu.cleave.dev", "helm upgrade")
	missing(fmt.Sprint(len(list.Items)))
	helmOn(t, "", "upgrade", "cleave", chartDir, "--reuse-values")
	missing("0")
	helmOn(t, "deviceClasses: {mps: {enabled: false}}", "upgrade", "cleave", chartDir, "--reuse-values")
	_, err = classes.Get(ctx, "mps.cleave.dev", metav1.GetOptions{})
	if err == nil {
		t.Error("the upgrade has not removed class mps.cleave.dev")
	}
	// One that is deleted later is reported alone.
	must(t, classes.Delete(ctx, "mig.cleave.dev", metav1.DeleteOptions{}))
	missing("1")
	uninstalled(t, ctx)
	events, err := eventsOf(ctx, plugin, "DeviceClassesMissing")
	must(t, err)
	var messages []string
	for _, e := range events {
		messages = append(messages, fmt.Sprintf("%dx %s", e.Count, e.Message))
	}
	if len(messages) != 2 || !strings.HasPrefix(messages[0], "1x ") || !strings.HasPrefix(messages[1], "1x ") ||
		strings.Contains(strings.Join(messages, "\n"), "mps.cleave.dev") {
		t.Errorf("got Events %q, want one of all classes and one of mig.cleave.dev", messages)
	}
}

// metric is the value of a series without labels that a plugin's pod serves.
func metric(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
	_, text, err := process.Read(ctx, "http://"+pod.Status.PodIP+":8080/metrics", "")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("there is no metric %s", name)
}
