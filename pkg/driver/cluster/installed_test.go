// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func TestWatcher_MissingClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		w := NewWatcher(client, "gpu.cleave.dev", "node-1", "ns/plugin", func() {})
		run(t, w.FollowDaemonSet, func(ctx context.Context) { w.Run(ctx, func(error) {}) })
		ctx, must := t.Context(), must(t)
		sets, classes := client.AppsV1().DaemonSets("ns"), client.ResourceV1().DeviceClasses()
		class := func(name string) *resourceapi.DeviceClass {
			return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
		daemonSet := func(names string) *appsv1.DaemonSet {
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "plugin", UID: "set-uid"}}
			if names != "" {
				set.Annotations = map[string]string{ClassesAnnotation: names}
			}
			return set
		}
		for _, step := range []struct {
			what    string
			do      func()
			want    []string
			changed bool
		}{
			{"nothing", func() {}, nil, false},
			{"a release without classes", func() { must(sets.Create(ctx, daemonSet(""), metav1.CreateOptions{})) }, nil, true},
			{"a release with two", func() { must(sets.Update(ctx, daemonSet("b,a"), metav1.UpdateOptions{})) }, []string{"a", "b"}, true},
			{"one exists", func() { must(classes.Create(ctx, class("a"), metav1.CreateOptions{})) }, []string{"b"}, true},
			{"both", func() { must(classes.Create(ctx, class("b"), metav1.CreateOptions{})) }, nil, true},
			{"one of others", func() { must(classes.Create(ctx, class("c"), metav1.CreateOptions{})) }, nil, true},
			{"one is deleted", func() { must(nil, classes.Delete(ctx, "a", metav1.DeleteOptions{})) }, []string{"a"}, true},
			{"an upgrade without it", func() { must(sets.Update(ctx, daemonSet("b"), metav1.UpdateOptions{})) }, nil, true},
			{"the last is deleted", func() { must(nil, classes.Delete(ctx, "b", metav1.DeleteOptions{})) }, []string{"b"}, true},
			{"the release is deleted", func() {
				ending := daemonSet("b")
				ending.DeletionTimestamp = &metav1.Time{}
				must(sets.Update(ctx, ending, metav1.UpdateOptions{}))
			}, nil, true},
		} {
			step.do()
			synctest.Wait()
			set, got := w.MissingClasses()
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%s: missing (-want +got):\n%s", step.what, diff)
			}
			if len(got) > 0 {
				want := &corev1.ObjectReference{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: "ns", Name: "plugin", UID: "set-uid"}
				if diff := cmp.Diff(want, set); diff != "" {
					t.Errorf("%s: DaemonSet (-want +got):\n%s", step.what, diff)
				}
			}
			changed := false
			select {
			case <-w.ClassesChanged():
				changed = true
			default:
			}
			if changed != step.changed {
				t.Errorf("%s: a change was reported: %t, want %t", step.what, changed, step.changed)
			}
		}
	})
}

// Of the plugins of many nodes, one writes; and again after the release was installed anew.
func TestWarnOnce(t *testing.T) {
	client := fake.NewClientset()
	for _, w := range []struct {
		uid     types.UID
		message string
	}{{"1", "a is missing"}, {"1", "a is missing"}, {"1", "b is missing"}, {"2", "a is missing"}} {
		set := &corev1.ObjectReference{Kind: "DaemonSet", Namespace: "ns", Name: "plugin", UID: w.uid}
		if err := WarnOnce(t.Context(), client, "gpu.cleave.dev", set, "Missing", w.message); err != nil {
			t.Fatal(err)
		}
	}
	list, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int32{}
	for _, e := range list.Items {
		got[string(e.InvolvedObject.UID)+" "+e.Reason+": "+e.Message] += e.Count
	}
	if diff := cmp.Diff(map[string]int32{"1 Missing: a is missing": 1, "1 Missing: b is missing": 1, "2 Missing: a is missing": 1}, got); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}
