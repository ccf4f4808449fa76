// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/history"
)

// Scheduling is what schedulers do with the pods of a namespace: at the API server, and by their Events.
type Scheduling struct {
	Kube      kubernetes.Interface
	Namespace string
}

// The Events that are recorded: kube-scheduler's of a victim (pkg/scheduler/framework/preemption/executor.go of kubernetes 1.37), and
// cleave-scheduler's of the pod for which others are evicted.
const (
	eventPreempted = "Preempted"
	eventPreempts  = "PreemptsForDevices"
)

// Run reports until ctx ends.
func (s Scheduling) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pods := scheduled{recorder: r, known: map[types.UID]progress{}}
	told := &told{recorder: r, known: map[types.UID]string{}}
	followers := []follower{
		{recorder: r, list: s.list, watch: s.watch, changed: pods.changed, deleted: pods.deleted},
		s.events(eventPreempted, told), s.events(eventPreempts, told),
	}
	var listed, all sync.WaitGroup
	listed.Add(len(followers))
	errs := make([]error, len(followers))
	for i := range followers {
		done := sync.OnceFunc(listed.Done)
		all.Go(func() {
			defer done()
			defer cancel()
			errs[i] = followers[i].run(ctx, done)
		})
	}
	listed.Wait()
	ready()
	all.Wait()
	return errors.Join(errs...)
}

func (s Scheduling) list(ctx context.Context) (runtime.Object, error) {
	return s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
}

func (s Scheduling) watch(ctx context.Context, from string) (apiwatch.Interface, error) {
	return s.Kube.CoreV1().Pods(s.Namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: from})
}

func (s Scheduling) events(reason string, into *told) follower {
	selector := fields.OneTermEqualSelector("reason", reason).String()
	return follower{
		recorder: into.recorder, changed: into.changed, deleted: func(runtime.Object) {},
		list: func(ctx context.Context) (runtime.Object, error) {
			return s.Kube.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		},
		watch: func(ctx context.Context, from string) (apiwatch.Interface, error) {
			return s.Kube.CoreV1().Events(s.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: from})
		},
	}
}

// progress is how far a pod is.
type progress struct {
	bound, deleted bool
	nominated      string
	evicted        string // for what reason
}

// scheduled reports how far pods have come.
type scheduled struct {
	recorder *history.Recorder
	known    map[types.UID]progress
}

func (s scheduled) changed(o runtime.Object) {
	pod := o.(*corev1.Pod)
	was, known := s.known[pod.UID]
	is := progressOf(pod)
	s.known[pod.UID] = is
	fact := history.Scheduling{Pod: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name}
	report := func(state history.SchedulingState) {
		fact.State = state
		s.recorder.Add(fact)
	}
	if !known {
		first := fact
		first.State, first.Scheduler, first.Replaced = history.PodPending, pod.Spec.SchedulerName,
			metav1.GetControllerOfNoCopy(pod) != nil && pod.Spec.SchedulingGroup == nil
		if pod.Spec.Priority != nil {
			first.Priority = *pod.Spec.Priority
		}
		s.recorder.Add(first)
	}
	if is.bound && !was.bound {
		report(history.PodBound)
	}
	if was.nominated != "" && is.nominated != was.nominated && !is.bound {
		report(history.PodDropped)
	}
	if is.evicted != "" && is.evicted != was.evicted {
		fact.Reason = is.evicted
		report(history.PodEvicted)
		fact.Reason = ""
	}
	if is.deleted && !was.deleted {
		report(history.PodDeleted)
	}
}

func progressOf(pod *corev1.Pod) progress {
	p := progress{bound: pod.Spec.NodeName != "", deleted: pod.DeletionTimestamp != nil, nominated: pod.Status.NominatedNodeName}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			p.evicted = c.Reason
		}
	}
	return p
}

func (s scheduled) deleted(o runtime.Object) {
	pod := o.(*corev1.Pod)
	delete(s.known, pod.UID)
	s.recorder.Add(history.Scheduling{Pod: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, State: history.PodLeft})
}

// told reports what Events of schedulers say.
type told struct {
	recorder *history.Recorder
	mu       sync.Mutex
	known    map[types.UID]string // their versions
}

func (t *told) changed(o runtime.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := o.(*corev1.Event)
	if t.known[e.UID] == e.ResourceVersion {
		return
	}
	t.known[e.UID] = e.ResourceVersion
	fact := history.Scheduling{Pod: string(e.InvolvedObject.UID), Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}
	switch {
	case e.Reason == eventPreempted && e.Related != nil:
		fact.State, fact.By = history.PodPreempted, string(e.Related.UID)
	case e.Reason == eventPreempts:
		fact.State, fact.Devices = history.PodPromised, promised(e.Message)
	default:
		return
	}
	t.recorder.Add(fact)
}

// kept is what an Event says of the devices that are kept for a pod (cmd/cleave-scheduler/told.go, gpupacking.DeviceNames).
var kept = regexp.MustCompile(`; gets devices (.+) when they have ended`)

// promised are the devices that an Event names; none where it does not name all of them.
func promised(message string) []string {
	found := kept.FindStringSubmatch(message)
	if found == nil || strings.Contains(found[1], " more") {
		return nil
	}
	return slices.Compact(strings.Split(found[1], ", "))
}
