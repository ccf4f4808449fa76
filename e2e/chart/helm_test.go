// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Log(diagnosis())
		t.Fatal(err)
	}
}

// diagnosis is what a person wants to see of a test that failed.
func diagnosis() string { return env.client.Diagnosis(namespace, demo) }

// helmOn runs Helm against the cluster.
func helmOn(t *testing.T, values string, args ...string) string {
	t.Helper()
	out, err := helm(t, values, append(args, "--kubeconfig", env.cluster.Kubeconfig(), "--namespace", namespace)...)
	must(t, err)
	return out
}

// podAppears bounds the time until a controller has made a component's pod, which Helm does not wait for.
const podAppears = 3 * time.Minute

// podOf is the one pod of a component that is not about to go.
func podOf(t *testing.T, ctx context.Context, component string) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, podAppears)
	defer cancel()
	var pod *corev1.Pod
	must(t, workload.Until(ctx, "component "+component+" to have one pod", func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
		if err != nil {
			return false, "", err
		}
		list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if len(list.Items) == 1 {
			pod = &list.Items[0]
		}
		return pod != nil, fmt.Sprintf("%d pods", len(list.Items)), nil
	}))
	return pod
}

// eventsOf are the Events of a reason on an object. They live for an hour, so there may be some on an earlier object of its name,
// which are not among them.
func eventsOf(ctx context.Context, object metav1.Object, reason string) ([]corev1.Event, error) {
	list, err := env.kube.CoreV1().Events(object.GetNamespace()).List(ctx, metav1.ListOptions{
		FieldSelector: "reason=" + reason + ",involvedObject.uid=" + string(object.GetUID()),
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// waitEvent waits for an Event of a reason on an object whose message has all parts.
func waitEvent(t *testing.T, ctx context.Context, object metav1.Object, reason string, parts ...string) {
	t.Helper()
	what := fmt.Sprintf("Event %s on %s with %q", reason, object.GetName(), parts)
	must(t, workload.Until(ctx, what, func(ctx context.Context) (bool, string, error) {
		events, err := eventsOf(ctx, object, reason)
		var messages []string
		for _, e := range events {
			messages = append(messages, e.Message)
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(e.Message, p) }) {
				return true, "", nil
			}
		}
		return false, strings.Join(messages, "\n"), err
	}))
}

// uninstall ends a release and waits until its pods are gone. There may be none, so that a test can see to it before it installs.
func uninstall(t *testing.T, ctx context.Context) {
	t.Helper()
	helmOn(t, "", "uninstall", "cleave", "--ignore-not-found", "--wait", "--timeout", helmPatience)
	must(t, env.client.WaitGone(ctx, namespace, ""))
}

// nothingInTheCluster waits until no object of the release is left, nor any of the plugin's.
func nothingInTheCluster(t *testing.T, ctx context.Context) {
	// The kubelet deletes slices half a minute after the plugin went.
	must(t, workload.Until(ctx, "the slices to go", func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + workload.Driver})
		return err == nil && len(list.Items) == 0, fmt.Sprintf("%d slices", len(list.Items)), err
	}))
	kinds, err := env.client.Kubectl(ctx, "", "api-resources", "--verbs=list", "-o", "name")
	must(t, err)
	list := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return strings.HasPrefix(kind, "events") })
	out, err := env.client.Kubectl(ctx, "", "get", strings.Join(list, ","), "-A", "-o", "name", "-l", "app.kubernetes.io/instance=cleave", "--ignore-not-found")
	must(t, err)
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "Warning: ") { // of kinds that are deprecated
			t.Errorf("%s is left", strings.TrimSpace(line))
		}
	}
}
