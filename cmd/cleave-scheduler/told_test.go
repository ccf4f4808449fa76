// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/kube-scheduler/framework"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// telling is what is needed of a scheduler to tell of evictions.
type telling struct {
	framework.Handle
	recorder *events.FakeRecorder
}

func (t telling) EventRecorder() events.EventRecorderLogger { return t.recorder }

// TestDone: pods that end anyway are not evicted, and are not waited for after they should have ended.
func TestDone(t *testing.T) {
	ends := time.Now().Add(time.Hour)
	victim := func(name string, deleted ...time.Time) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}}
		for _, at := range deleted {
			pod.DeletionTimestamp = &metav1.Time{Time: at}
		}
		return pod
	}
	for name, tt := range map[string]struct {
		victims []*corev1.Pod
		outcome string
		events  []string
		later   time.Time
	}{
		"evicted": {[]*corev1.Pod{victim("b"), victim("a")}, outcomeEvicted, []string{
			"Normal PreemptedForDevices To be evicted from node n1 with CPU, memory or other resources, to make room for pod ml/urgent of priority 0.",
			"Normal PreemptedForDevices To be evicted from node n1 with CPU, memory or other resources, to make room for pod ml/urgent of priority 0.",
			"Normal PreemptsForDevices Evicts pods ml/a, ml/b on node n1; gets devices gpu-0 when they have ended."}, time.Time{}},
		"one ends": {[]*corev1.Pod{victim("b", ends), victim("a")}, outcomeEvicted, []string{
			"Normal PreemptedForDevices To be evicted from node n1 with CPU, memory or other resources, to make room for pod ml/urgent of priority 0.",
			"Normal PreemptsForDevices Evicts pods ml/a on node n1; gets devices gpu-0 when they have ended."}, ends.Add(time.Minute)},
		"all end": {[]*corev1.Pod{victim("b", ends.Add(time.Hour)), victim("a", ends)}, outcomeWaiting, []string{
			"Normal PreemptsForDevices Waits for pods ml/a, ml/b on node n1, which end anyway; gets devices gpu-0 when they have ended."},
			ends.Add(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			handle := telling{recorder: events.NewFakeRecorder(10)}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "urgent", UID: "urgent"}}
			a := &attempt{preemptionPlugin: &preemptionPlugin{plugins: newPlugins(), handle: handle, later: newLater(handle)},
				found: map[string]room{"n1": {victims: tt.victims, devices: []gpupacking.Result{{Device: "gpu-0"}}}}}
			before := counted(t, "cleave_scheduler_preemptions_total")
			a.done(t.Context(), pod, scheduler.NewPostFilterResultWithNominatedNode("n1"), nil)
			after := counted(t, "cleave_scheduler_preemptions_total")
			maps.DeleteFunc(after, func(outcome string, n float64) bool { return n == before[outcome] })
			if got := slices.Collect(maps.Keys(after)); fmt.Sprint(got) != fmt.Sprint([]string{tt.outcome}) {
				t.Errorf("outcomes are %v, want %s", got, tt.outcome)
			}
			close(handle.recorder.Events)
			var told []string
			for e := range handle.recorder.Events {
				told = append(told, e)
			}
			if !slices.Equal(tt.events, told) {
				t.Errorf("told is\n%s\nwant\n%s", strings.Join(told, "\n"), strings.Join(tt.events, "\n"))
			}
			if got := a.later.pods[pod.UID].at; !got.Equal(tt.later) {
				t.Errorf("the pod is tried again at %s, want %s", got, tt.later)
			}
		})
	}
}

// Events tell nobody the names of pods of other namespaces.
func TestNamed(t *testing.T) {
	pod := func(namespace string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "secret", UID: "uid-1"}}
	}
	for namespace, want := range map[string]string{"ml": "ml/secret", "other": "uid-1"} {
		if got := named(pod("ml"), pod(namespace)); got != want {
			t.Errorf("in an Event of namespace %s: %q, want %q", namespace, got, want)
		}
	}
}
