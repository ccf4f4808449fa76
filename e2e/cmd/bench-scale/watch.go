// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// placed is where a pod is.
type placed struct {
	node, nominated string
	at              time.Time
	// refused means that the scheduler found no node for it, so far.
	refused bool
}

// podWatch follows all pods.
type podWatch struct {
	stop context.CancelFunc
	mu   sync.Mutex
	pods map[string]placed
	// changed is closed and replaced with every change.
	changed chan struct{}
}

func watchPods(ctx context.Context, client kubernetes.Interface) (*podWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &podWatch{stop: cancel, pods: map[string]placed{}, changed: make(chan struct{})}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.set(o) },
		UpdateFunc: func(_, o any) { w.set(o) },
		DeleteFunc: func(o any) { w.forget(o) },
	})
	if err != nil {
		cancel()
		return nil, err
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		cancel()
		return nil, errors.Join(errors.New("watch the pods"), ctx.Err())
	}
	return w, nil
}

func (w *podWatch) set(o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	p := placed{node: pod.Spec.NodeName, nominated: pod.Status.NominatedNodeName, at: time.Now()}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			p.refused = true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, known := w.pods[pod.Name]; known && before.node == p.node && before.nominated == p.nominated && before.refused == p.refused {
		return
	}
	w.pods[pod.Name] = p
	w.notify()
}

func (w *podWatch) forget(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, pod.Name)
	w.notify()
}

// notify wakes those who wait. The lock is taken.
func (w *podWatch) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits until a condition of the pods holds. The condition must not keep the map.
func (w *podWatch) until(ctx context.Context, holds func(map[string]placed) bool) error {
	for {
		w.mu.Lock()
		ok, changed := holds(w.pods), w.changed
		w.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// get is what is known of a pod.
func (w *podWatch) get(name string) placed {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[name]
}
