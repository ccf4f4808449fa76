// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/history"
)

func TestScheduled(t *testing.T) {
	r := record(t)
	s := scheduled{recorder: r, known: map[types.UID]progress{}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "a", Namespace: "ns", Name: "a", OwnerReferences: []metav1.OwnerReference{{Controller: new(true)}}},
		Spec:       corev1.PodSpec{SchedulerName: "s", Priority: new(int32(7))},
	}
	see := func(change func(*corev1.Pod)) {
		pod = pod.DeepCopy()
		change(pod)
		s.changed(pod)
	}
	see(func(*corev1.Pod) {})
	see(func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" })
	see(func(p *corev1.Pod) { p.Status.NominatedNodeName = "" })
	see(func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" })
	see(func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	see(func(p *corev1.Pod) { p.Status.NominatedNodeName = "" })
	see(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "r"}}
	})
	see(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Time) })
	see(func(*corev1.Pod) {})
	s.deleted(pod)
	want := []history.Fact{
		history.Scheduling{Pod: "a", Namespace: "ns", Name: "a", State: history.PodPending, Scheduler: "s", Priority: 7, Replaced: true},
		history.Scheduling{Pod: "a", Namespace: "ns", Name: "a", State: history.PodDropped},
		history.Scheduling{Pod: "a", Namespace: "ns", Name: "a", State: history.PodBound},
		history.Scheduling{Pod: "a", Namespace: "ns", Name: "a", State: history.PodEvicted, Reason: "r"},
		history.Scheduling{Pod: "a", Namespace: "ns", Name: "a", State: history.PodDeleted},
		history.Scheduling{Pod: "a", Namespace: "ns", Name: "a", State: history.PodLeft},
	}
	if diff := cmp.Diff(want, factsOf(t, r)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

func TestTold(t *testing.T) {
	r := record(t)
	told := &told{recorder: r, known: map[types.UID]string{}}
	event := func(uid types.UID, version, reason, message string, related *corev1.ObjectReference) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: version}, Reason: reason, Message: message, Related: related,
			InvolvedObject: corev1.ObjectReference{UID: "v", Namespace: "ns", Name: "v"},
		}
	}
	told.changed(event("1", "1", "Preempted", "", &corev1.ObjectReference{UID: "p"}))
	told.changed(event("1", "1", "Preempted", "", &corev1.ObjectReference{UID: "p"})) // listed again
	told.changed(event("1", "2", "Preempted", "", &corev1.ObjectReference{UID: "p"})) // once more
	told.changed(event("2", "1", "Preempted", "", nil))
	told.changed(event("3", "1", "PreemptsForDevices", "Evicts pods ns/v on node n; gets devices gpu-1, gpu-2 when they have ended.", nil))
	told.changed(event("4", "1", "PreemptsForDevices", "Evicts pods ns/v on node n; gets devices gpu-1 and 1 more when they have ended.", nil))
	want := []history.Fact{
		history.Scheduling{Pod: "v", Namespace: "ns", Name: "v", State: history.PodPreempted, By: "p"},
		history.Scheduling{Pod: "v", Namespace: "ns", Name: "v", State: history.PodPreempted, By: "p"},
		history.Scheduling{Pod: "v", Namespace: "ns", Name: "v", State: history.PodPromised, Devices: []string{"gpu-1", "gpu-2"}},
		history.Scheduling{Pod: "v", Namespace: "ns", Name: "v", State: history.PodPromised},
	}
	if diff := cmp.Diff(want, factsOf(t, r)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
