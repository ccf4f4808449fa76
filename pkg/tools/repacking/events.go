// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// Reasons of Events of pods.
const (
	evictsReason  = "RepackEvicts"
	stoppedReason = "RepackStopped"
)

// reporter is who writes the Events.
const reporter = v1alpha1.RepackKey

// noteSize is how much an Event can say (pkg/apis/core/validation/events.go).
const noteSize = 1024

// tell writes an Event of a pod. It is there when tell returns: evictions are counted by it.
func (r *Repacker) tell(ctx context.Context, m *repack.Move, kind, reason, note string) error {
	now := time.Now()
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: m.Namespace, Name: fmt.Sprintf("%s.%x", m.Pod, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reporter, ReportingInstance: "cleave", Action: "Repack", Reason: reason, Type: kind,
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: m.Namespace, Name: m.Pod, UID: m.UID},
		Note:      fmt.Sprintf("%.*s", noteSize, note),
	}
	if _, err := r.Client.EventsV1().Events(m.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("write Event %s of pod %s/%s: %w", reason, m.Namespace, m.Pod, err)
	}
	return nil
}

func (r *Repacker) tellEvicted(ctx context.Context, m *repack.Move, frees string) error {
	r.Say("%s/%s: evict from %s; the replacement should be at %s", m.Namespace, m.Pod, m.From, m.Where())
	return r.tell(ctx, m, corev1.EventTypeNormal, evictsReason,
		fmt.Sprintf("Evicts the pod from %s to free %s; the replacement should be at %s.", m.From, frees, m.Where()))
}

// tellStopped is for people: that it fails changes nothing.
func (r *Repacker) tellStopped(ctx context.Context, a *Attempt, d Decision) {
	if err := r.tell(ctx, &a.Move, corev1.EventTypeWarning, stoppedReason, "The repack stops: "+d.Message+"."); err != nil {
		klog.FromContext(ctx).Error(err, "An Event is not written")
	}
}

// evictions counts those since a time, whoever ran the repack. Events live an hour by default (kube-apiserver --event-ttl), which is what
// budgets are about.
func (r *Repacker) evictions(ctx context.Context, since time.Time) (n int, err error) {
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		opts.FieldSelector = fields.Set{"reason": evictsReason}.AsSelector().String()
		return r.Client.EventsV1().Events(metav1.NamespaceAll).List(ctx, opts)
	})
	pages.PageBufferSize = 0
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		e, ok := o.(*eventsv1.Event)
		if ok && e.Reason == evictsReason && e.ReportingController == reporter && e.EventTime.After(since) {
			n++
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count the evictions of the last hour by Events: %w", err)
	}
	return n, nil
}
