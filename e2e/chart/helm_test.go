// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		if env != nil {
			t.Log(diagnosis())
		}
		t.Fatal(err)
	}
}

// errOf is the error of a call that returns something besides.
func errOf[T any](_ T, err error) error { return err }

// diagnosis is what a person wants to see of a test that failed.
func diagnosis() string { return env.client.Diagnosis(namespace, demo) }

// helmOn runs Helm against the cluster.
func helmOn(t *testing.T, values string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), timeout) // clean-up needs it, too
	defer cancel()
	out, err := env.Helm(ctx, values, args...)
	must(t, err)
	return out
}

// atEnd cleans up at the end of a test, with a time of its own.
func atEnd(t *testing.T, steps ...func(*testing.T, context.Context)) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		for _, step := range steps {
			step(t, ctx)
		}
	})
}

// podsOf are the pods of a component, also those that are about to go.
func podsOf(ctx context.Context, component string) ([]corev1.Pod, error) {
	list, err := env.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// onlyPod waits until a component has one pod, none that is about to go besides, and the pod fits.
func onlyPod(t *testing.T, ctx context.Context, component string, fits ...func(*corev1.Pod) bool) (pod *corev1.Pod) {
	t.Helper()
	must(t, workload.Until(ctx, "the only pod of component "+component, func(ctx context.Context) (bool, string, error) {
		pods, err := podsOf(ctx, component)
		if err != nil || len(pods) != 1 {
			return false, fmt.Sprintf("%d pods", len(pods)), err
		}
		pod = &pods[0]
		return !slices.ContainsFunc(fits, func(fits func(*corev1.Pod) bool) bool { return !fits(pod) }), workload.Describe(pod), nil
	}))
	return pod
}

// What a pod has to be for onlyPod: ready, of an image with a tag, another than one before.
func ready(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
}

func ofTag(tag string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return strings.HasSuffix(p.Spec.Containers[0].Image, ":"+tag) }
}

func otherThan(old *corev1.Pod) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.UID != old.UID }
}

// podAppears bounds the time until a controller has made a component's pod, which Helm does not wait for.
const podAppears = 3 * time.Minute

// goes reports whether a pod is about to go.
func goes(p corev1.Pod) bool { return p.DeletionTimestamp != nil }

// podOf is the one pod of a component that is not about to go.
func podOf(t *testing.T, ctx context.Context, component string) (pod *corev1.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, podAppears)
	defer cancel()
	must(t, workload.Until(ctx, "component "+component+" to have one pod", func(ctx context.Context) (bool, string, error) {
		pods, err := podsOf(ctx, component)
		pods = slices.DeleteFunc(pods, goes)
		if len(pods) == 1 {
			pod = &pods[0]
		}
		return pod != nil, fmt.Sprintf("%d pods", len(pods)), err
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

// kubectl runs kubectl and returns what it prints.
func kubectl(t *testing.T, ctx context.Context, args ...string) string {
	t.Helper()
	out, err := env.client.Kubectl(ctx, "", args...)
	must(t, err)
	return out
}

// served waits until the program of a pod in the namespace demo has an MPS server.
func served(t *testing.T, ctx context.Context, pod string) workload.Served {
	t.Helper()
	got, err := env.client.Served(ctx, demo, pod)
	must(t, err)
	return got
}

// create makes objects in the namespace demo.
func create(t *testing.T, ctx context.Context, objects ...runtime.Object) {
	t.Helper()
	must(t, workload.Create(ctx, env.kube, demo, objects))
}

// runs waits until a pod of the namespace demo runs.
func runs(t *testing.T, ctx context.Context, name string) *corev1.Pod {
	t.Helper()
	pod, err := env.client.WaitRunning(ctx, demo, name)
	must(t, err)
	return pod
}

// endPods deletes pods of the namespace demo, and waits until they are gone, which takes an Unprepare of their claims.
func endPods(t *testing.T, ctx context.Context, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		must(t, env.kube.CoreV1().Pods(demo).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	}
	for _, pod := range pods {
		must(t, env.client.WaitGone(ctx, demo, pod.Name))
	}
}

// emptyDemo removes pods, claims and templates of the namespace demo.
func emptyDemo(t *testing.T, ctx context.Context) {
	t.Helper()
	must(t, env.kube.CoreV1().Pods(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	must(t, env.client.WaitGone(ctx, demo, ""))
	must(t, env.kube.ResourceV1().ResourceClaims(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	must(t, env.kube.ResourceV1().ResourceClaimTemplates(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// mayDo asks the API server what a ServiceAccount of the release may do.
func mayDo(t *testing.T, ctx context.Context, account string, what authorizationv1.ResourceAttributes) bool {
	t.Helper()
	review, err := env.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + account,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: &what,
		},
	}, metav1.CreateOptions{})
	must(t, err)
	return review.Status.Allowed
}

// uninstall ends a release and waits until its pods are gone. There may be none, so that a test can see to it before it installs.
func uninstall(t *testing.T, ctx context.Context) {
	t.Helper()
	helmOn(t, "", "uninstall", "cleave", "--ignore-not-found", "--wait", "--timeout", helmTimeout)
	must(t, env.client.WaitGone(ctx, namespace, ""))
}

// nothingInTheCluster waits until no object of the release is left, nor any of the plugin's.
func nothingInTheCluster(t *testing.T, ctx context.Context) {
	// The kubelet deletes slices half a minute after the plugin went.
	must(t, workload.Until(ctx, "the slices to go", func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, fmt.Sprintf("%d slices", len(list.Items)), err
	}))
	kinds := kubectl(t, ctx, "api-resources", "--verbs=list", "-o", "name")
	list := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return strings.HasPrefix(kind, "events") })
	out := kubectl(t, ctx, "get", strings.Join(list, ","), "-A", "-o", "name", "-l", "app.kubernetes.io/instance=cleave", "--ignore-not-found")
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "Warning: ") { // of kinds that are deprecated
			t.Errorf("%s is left", strings.TrimSpace(line))
		}
	}
}
