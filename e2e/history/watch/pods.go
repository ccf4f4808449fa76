// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/history"
)

// Pods are those of a node that were deleted, at the API server.
type Pods struct {
	Kube kubernetes.Interface
	Node string
}

// Run reports until ctx ends.
func (p Pods) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	pods := endings{recorder: r, ending: map[types.UID]bool{}}
	f := follower{recorder: r, list: p.list, watch: p.watch, changed: pods.changed, deleted: pods.deleted}
	return f.run(ctx, ready)
}

func (p Pods) onNode() string { return fields.OneTermEqualSelector("spec.nodeName", p.Node).String() }

func (p Pods) list(ctx context.Context) (runtime.Object, error) {
	return p.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: p.onNode()})
}

func (p Pods) watch(ctx context.Context, from string) (apiwatch.Interface, error) {
	return p.Kube.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{ResourceVersion: from, FieldSelector: p.onNode()})
}

// endings reports pods that were deleted, and that they are gone.
type endings struct {
	recorder *history.Recorder
	ending   map[types.UID]bool
}

func (e endings) changed(o runtime.Object) {
	pod := o.(*corev1.Pod)
	if pod.DeletionTimestamp == nil || e.ending[pod.UID] {
		return
	}
	e.ending[pod.UID] = true
	e.report(pod, history.PodEnding)
}

func (e endings) deleted(o runtime.Object) {
	pod := o.(*corev1.Pod)
	if e.ending[pod.UID] {
		delete(e.ending, pod.UID)
		e.report(pod, history.PodGone)
	}
}

func (e endings) report(pod *corev1.Pod, state history.PodState) {
	e.recorder.Add(history.Pod{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, State: state})
}
