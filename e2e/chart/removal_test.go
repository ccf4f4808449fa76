// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// lookAgain prints the device nodes of GPUs and partitions over and over, each time with a number.
const lookAgain = `trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); ` +
	`echo look $i $(ls -d /dev/nvidia[0-9]* /dev/nvidia-caps/* 2>/dev/null); sleep 0.2 & wait; done`

// looked is what a pod with lookAgain printed last.
func looked(ctx context.Context, pod string) (n int, nodes string, err error) {
	log, err := env.cluster.PodLogs(ctx, demo, pod, "main")
	if err != nil {
		return 0, "", err
	}
	if !strings.HasSuffix(log, "\n") {
		log = log[:strings.LastIndex(log, "\n")+1]
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	fields := strings.SplitN(lines[len(lines)-1], " ", 3)
	if len(fields) < 3 {
		return 0, "", fmt.Errorf("pod %s sees no GPU: its log is %s", pod, log)
	}
	n, err = strconv.Atoi(fields[1])
	return n, fields[2], err
}

// seesNow is what the container of a pod sees from now on.
func seesNow(t *testing.T, ctx context.Context, pod string) string {
	t.Helper()
	var nodes string
	first := -1
	must(t, workload.Until(ctx, "pod "+pod+" to look at its devices", func(ctx context.Context) (bool, string, error) {
		n, seen, err := looked(ctx, pod)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the log appears with the container
		}
		if first < 0 {
			first = n
		}
		nodes = seen
		return n >= first+2, nodes, nil // the next look may have begun before
	}))
	return nodes
}

// holding makes pods of wishes, and returns what those see that do not use MPS.
func holding(t *testing.T, ctx context.Context, list []wish) (pods map[string]*corev1.Pod, sees map[string]string) {
	t.Helper()
	pods, sees = map[string]*corev1.Pod{}, map[string]string{}
	for _, w := range list {
		pod := w.pod(w.name)
		if pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", lookAgain}; w.class == "mps.cleave.dev" {
			workload.RunCUDA(pod)
		}
		create(t, ctx, w.template(), pod)
		running := runs(t, ctx, pod.Name)
		if pods[w.name] = running; w.class != "mps.cleave.dev" {
			sees[w.name] = seesNow(t, ctx, pod.Name)
		}
	}
	return pods, sees
}

// undisturbed checks that a pod's container is the same as before and sees the same.
func undisturbed(t *testing.T, ctx context.Context, before *corev1.Pod, sees string) {
	t.Helper()
	if diff := cmp.Diff(sees, seesNow(t, ctx, before.Name)); diff != "" {
		t.Errorf("what pod %s sees (-before +after):\n%s", before.Name, diff)
	}
	sameContainers(t, ctx, before)
}

// refused waits for an Event on a pod.
func refused(t *testing.T, ctx context.Context, pod, reason, says string) {
	t.Helper()
	p, err := env.kube.CoreV1().Pods(demo).Get(ctx, pod, metav1.GetOptions{})
	must(t, err)
	waitEvent(t, ctx, p, reason, says)
	p, err = env.kube.CoreV1().Pods(demo).Get(ctx, pod, metav1.GetOptions{})
	must(t, err)
	if p.Status.Phase != corev1.PodPending {
		t.Errorf("pod %s is %s without a plugin, want %s", pod, p.Status.Phase, corev1.PodPending)
	}
}

// ownClass is a class of whole GPUs that is not the chart's, so it outlives a release.
func ownClass(t *testing.T, ctx context.Context) wish {
	t.Helper()
	w := wish{name: "own-class", class: "own-class.example.com"}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: w.class}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.cleave.dev" && device.attributes["gpu.cleave.dev"].type == "gpu"`},
	}}}}
	must(t, workload.Create(ctx, env.kube, "", []runtime.Object{class}))
	create(t, ctx, w.template())
	return w
}

// removePlugin ends a release and waits until its plugin serves no more. Its pods may take longer to end than what is published stays:
// the kubelet may hear late of a container's end.
func removePlugin(t *testing.T, ctx context.Context) {
	t.Helper()
	helmOn(t, "", "uninstall", "cleave", "--timeout", helmTimeout)
	must(t, workload.Until(ctx, "the plugin to go", func(context.Context) (bool, string, error) {
		left, err := filepath.Glob(filepath.Join(env.cluster.RegistryDir(), workload.Driver+"-*"))
		return len(left) == 0, strings.Join(left, " "), err
	}))
}

// TestRelease_RemovedWhileAllocated removes the plugin below running pods, lets some of these end while there is
// none, and installs it again.
func TestRelease_RemovedWhileAllocated(t *testing.T) {
	ctx := tests.Bound(t, 2*timeout)
	defer removeAfterFailure(t)
	installed(t, ctx)
	own := ownClass(t, ctx)
	defer func() {
		if err := env.kube.ResourceV1().DeviceClasses().Delete(context.WithoutCancel(ctx), own.class, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	pods, sees := holding(t, ctx, wishes[:3])
	before, err := env.Holdings(ctx, 0)
	must(t, err)
	removePlugin(t, ctx)

	// What is published stays for half a minute, so the scheduler can still give it to who asks by a class that is there.
	late, classless := own.pod("late"), wishes[0].pod("classless")
	create(t, ctx, late, classless)
	refused(t, ctx, late.Name, "FailedPrepareDynamicResources", "gpu.cleave.dev")
	refused(t, ctx, classless.Name, "FailedScheduling", "gpu.cleave.dev")
	must(t, env.client.WaitGone(ctx, namespace, ""))
	for _, w := range wishes[:3] {
		undisturbed(t, ctx, pods[w.name], sees[w.name])
	}
	for _, w := range wishes[:2] {
		endsButStays(t, ctx, pods[w.name].Name)
	}
	for _, w := range wishes[:2] {
		_, err := env.kube.CoreV1().Pods(demo).Get(ctx, pods[w.name].Name, metav1.GetOptions{})
		must(t, err)
	}
	after, err := env.Holdings(ctx, 0)
	must(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("what the node holds without a plugin (-before +after):\n%s", diff)
	}

	installed(t, ctx)
	for _, w := range wishes[:2] {
		must(t, env.client.WaitGone(ctx, demo, pods[w.name].Name))
	}
	undisturbed(t, ctx, pods["share"], sees["share"])
	for _, pod := range []*corev1.Pod{late, classless} {
		runs(t, ctx, pod.Name)
	}
	emptyDemo(t, ctx)
	waitNoClaims(t, ctx)
	uninstalled(t, ctx)
}

// endsButStays deletes a pod: its container ends, and the pod is kept until somebody takes its devices back.
func endsButStays(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	must(t, env.kube.CoreV1().Pods(demo).Delete(ctx, name, metav1.DeleteOptions{}))
	must(t, env.client.WaitEnded(ctx, demo, name))
}
