// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/repacking"
)

const (
	planned = "gpu-0000-1b-00-0-mig-19-5"
	other   = "gpu-0000-1b-00-0-mig-19-2"
)

// evictions makes a fake API server evict: what happens is by the number of the request.
func evictions(t *testing.T, client *fake.Clientset, answer func(n int) error) (asked *int) {
	t.Helper()
	asked = new(int)
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		*asked++
		e, ok := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
		if !ok || e.Name != "stray" || e.DeleteOptions == nil || *e.DeleteOptions.Preconditions.UID != "stray" {
			t.Errorf("got the eviction %+v", action)
		}
		return true, nil, answer(*asked)
	})
	return asked
}

// replace does what controllers and scheduler do after an eviction: the pod is gone, and another has a device.
func replace(t *testing.T, client *fake.Clientset, node, device string) {
	t.Helper()
	gone := []error{
		client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ml", "stray"),
		client.Tracker().Delete(resourceClaims, "ml", "stray"),
	}
	objects := smallPod("again", node, device, "StatefulSet")
	pod := objects[0].(*corev1.Pod)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, o := range objects {
		gone = append(gone, client.Tracker().Add(o))
	}
	if err := errors.Join(gone...); err != nil {
		t.Error(err)
	}
}

var resourceClaims = resourceapi.SchemeGroupVersion.WithResource("resourceclaims")

// eventReasons are those of the Events that were written.
func eventReasons(t *testing.T, client *fake.Clientset) (reasons []string) {
	t.Helper()
	list, err := client.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		reasons = append(reasons, list.Items[i].Reason)
	}
	return reasons
}

func taintsOf(t *testing.T, client *fake.Clientset, node string) []corev1.Taint {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Spec.Taints
}

func applyFlags() *repackFlags {
	return &repackFlags{driver: "gpu.cleave.dev", apply: true, dryRun: "none", limits: repacking.Limits{Eviction: 10 * time.Minute, Replacement: 10 * time.Minute}}
}

func TestRepack_Apply(t *testing.T) {
	refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	type answer = func(t *testing.T, client *fake.Clientset, n int) error
	to := func(node, device string) answer {
		return func(t *testing.T, client *fake.Clientset, _ int) error { replace(t, client, node, device); return nil }
	}
	nothing := func(*testing.T, *fake.Clientset, int) error { return nil }
	for name, tt := range map[string]struct {
		answer answer
		before func(*fake.Clientset) error
		asked  int
		reason repacking.Reason
		says   string
		took   time.Duration
		events []string
	}{
		"as planned": {answer: to("node-1", planned), asked: 1, took: 2 * time.Second, events: []string{"RepackEvicts"}},
		"elsewhere": {answer: to("node-1", other), asked: 1, reason: repacking.Elsewhere, says: "is at node-1 " + other, took: 2 * time.Second,
			events: []string{"RepackEvicts", "RepackStopped"}},
		"refused for a while": {answer: func(t *testing.T, client *fake.Clientset, n int) error {
			if n < 4 {
				return refused
			}
			replace(t, client, "node-1", planned)
			return nil
		}, asked: 4, took: 8 * time.Second, events: []string{"RepackEvicts"}},
		"refused for ever": {answer: func(*testing.T, *fake.Clientset, int) error { return refused }, asked: 301, reason: repacking.Refused,
			says: "disruption budget", took: 10*time.Minute + 2*time.Second, events: []string{"RepackEvicts", "RepackStopped"}},
		"never ends": {answer: nothing, asked: 1, reason: repacking.Timeout, says: "the pod to end",
			took: 10*time.Minute + 2*time.Second, events: []string{"RepackEvicts", "RepackStopped"}},
		"not allowed": {answer: func(*testing.T, *fake.Clientset, int) error {
			return apierrors.NewInternalError(errors.New("two budgets"))
		},
			asked: 1, says: "evict pod ml/stray: Internal error", events: []string{"RepackEvicts"}},
		"changed": {answer: nothing, before: func(client *fake.Clientset) error {
			return client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ml", "stray")
		}, reason: repacking.Changed, says: "are not those that were advised"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := scatteredCluster(t)
				asked := evictions(t, client, func(n int) error { return tt.answer(t, client, n) })
				var out bytes.Buffer
				r := applyFlags().repacker(client, &out)
				advice, err := r.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if tt.before != nil {
					if err := tt.before(client); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				done, err := r.Apply(t.Context(), advice, 0)
				stop := &repacking.Stop{}
				errors.As(err, &stop)
				failed := tt.says != ""
				if failed != (err != nil) || failed && !strings.Contains(err.Error(), tt.says) || stop.Reason != tt.reason || failed == (done == 1) {
					t.Errorf("%d steps are done, error %v", done, err)
				}
				if took := time.Since(began); *asked != tt.asked || took != tt.took {
					t.Errorf("asked %d times in %s, want %d in %s", *asked, took, tt.asked, tt.took)
				}
				if diff := cmp.Diff(tt.events, eventReasons(t, client)); diff != "" {
					t.Errorf("Events (-want +got):\n%s", diff)
				}
				if got := taintsOf(t, client, "node-2"); len(got) > 0 || !strings.Contains(out.String(), "node-2: taint") {
					t.Errorf("node-2 keeps %v; output:\n%s", got, &out)
				}
			})
		})
	}
}

// TestRepack_DryRun: the API server is asked, and each request says that nothing is to be changed.
func TestRepack_DryRun(t *testing.T) {
	client := scatteredCluster(t)
	evictions(t, client, func(int) error { return nil })
	f := applyFlags()
	f.dryRun = "server"
	var out bytes.Buffer
	r := f.repacker(client, &out)
	advice, err := r.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if done, err := r.Apply(t.Context(), advice, 0); err != nil || done != 1 {
		t.Errorf("%d steps, error %v", done, err)
	}
	writes := 0
	for _, action := range client.Actions() {
		var dry []string
		switch a := action.(type) {
		case clienttesting.CreateActionImpl:
			dry = a.GetObject().(*policyv1.Eviction).DeleteOptions.DryRun
		case clienttesting.PatchActionImpl:
			dry = a.PatchOptions.DryRun
		case clienttesting.ListActionImpl, clienttesting.GetActionImpl:
			continue
		}
		if writes++; !cmp.Equal(dry, []string{metav1.DryRunAll}) {
			t.Errorf("%s of %s is no dry run", action.GetVerb(), action.GetResource().Resource)
		}
	}
	if writes != 3 || !strings.Contains(out.String(), "ml/stray: would be evicted; the replacement would be at node-1 "+planned) {
		t.Errorf("%d requests; output:\n%s", writes, &out)
	}
}

// TestRepack_Resumed: what an interrupted run has left is waited for and taken away, before anything is planned.
func TestRepack_Resumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := scatteredCluster(t)
		node, err := client.CoreV1().Nodes().Get(t.Context(), "node-2", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		left := corev1.Taint{Key: "team", Effect: corev1.TaintEffectPreferNoSchedule}
		node.Spec.Taints = []corev1.Taint{{Key: v1alpha1.RepackKey, Effect: corev1.TaintEffectNoSchedule}, left}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "on-its-way", CreationTimestamp: metav1.Now()}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		misspelled := pod.DeepCopy() // the template of its claim, so that no scheduler ever looks at it
		misspelled.Name, misspelled.CreationTimestamp = "misspelled", metav1.NewTime(time.Now().Add(-time.Hour))
		for _, p := range []*corev1.Pod{pod, misspelled} {
			if err := client.Tracker().Add(p); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		r := applyFlags().repacker(client, &out)
		time.AfterFunc(9*time.Second, func() {
			pod := pod.DeepCopy()
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
			if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "ml"); err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		advice, err := r.Begin(t.Context())
		if err != nil || len(advice.Steps) != 1 || time.Since(began) != 10*time.Second {
			t.Errorf("got %+v, %v after %s, want a step after 10s", advice, err, time.Since(began))
		}
		if diff := cmp.Diff([]corev1.Taint{left}, taintsOf(t, client, "node-2")); diff != "" {
			t.Errorf("taints (-want +got):\n%s", diff)
		}
	})
}

// TestRepack_Serve: evictions of the last hour count, whoever asked for them, and windows are waited for.
func TestRepack_Serve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which begins on a Saturday at midnight, UTC
		client := scatteredCluster(t)
		var at time.Time
		asked := evictions(t, client, func(int) error {
			at = time.Now()
			replace(t, client, "node-1", planned)
			return nil
		})
		began := time.Now()
		for name, age := range map[string]time.Duration{"old": 90 * time.Minute, "new": 15 * time.Minute} {
			e := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}, Reason: "RepackEvicts", ReportingController: v1alpha1.RepackKey,
				EventTime: metav1.NewMicroTime(began.Add(-age))}
			if err := client.Tracker().Add(e); err != nil {
				t.Fatal(err)
			}
		}
		f := applyFlags()
		f.format, f.every, f.zone, f.windows, f.permit.PerHour = "table", 10*time.Minute, "UTC", []string{"Sat 00:30-03:00"}, 1
		if err := f.check(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Hour)
		defer cancel()
		if err := f.repacker(client, &bytes.Buffer{}).Serve(ctx, f.every, 0); err != nil {
			t.Error(err)
		}
		if got := at.Sub(began); *asked != 1 || got != 50*time.Minute {
			t.Errorf("%d evictions, the last after %s, want one after 50m", *asked, got)
		}
	})
}
