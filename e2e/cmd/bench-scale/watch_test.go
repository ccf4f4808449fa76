// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// TestPodWatch_Until: a wait goes on until the condition holds, whatever else changes, or until its context ends.
func TestPodWatch_Until(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &podWatch{pods: map[string]placed{}, changed: make(chan struct{})}
		pod := func(name, node string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		start := func(holds func(map[string]placed) bool) (ended func() (error, bool)) {
			done := make(chan error, 1)
			go func() { done <- w.until(ctx, holds) }()
			return func() (error, bool) {
				synctest.Wait()
				select {
				case err := <-done:
					return err, true
				default:
					return nil, false
				}
			}
		}
		bound := start(func(pods map[string]placed) bool { return pods["a"].node == "node-1" })
		for _, p := range []*corev1.Pod{pod("a", ""), pod("b", "node-1"), pod("b", "node-1")} {
			w.set(p)
			if err, ok := bound(); ok {
				t.Fatalf("the wait ends with %v before its pod is bound", err)
			}
		}
		w.set(pod("a", "node-1"))
		if err, ok := bound(); !ok || err != nil {
			t.Errorf("the pod is bound: ended %t, %v", ok, err)
		}
		gone := start(func(pods map[string]placed) bool { return len(pods) == 0 })
		w.forget(pod("a", "node-1"))
		if err, ok := gone(); ok {
			t.Errorf("one pod is left, and the wait ends with %v", err)
		}
		w.forget(cache.DeletedFinalStateUnknown{Key: "default/b", Obj: pod("b", "node-1")})
		if err, ok := gone(); !ok || err != nil {
			t.Errorf("all pods are gone: ended %t, %v", ok, err)
		}
		never := start(func(map[string]placed) bool { return false })
		cancel()
		if err, ok := never(); !ok || !errors.Is(err, context.Canceled) {
			t.Errorf("the context ended: ended %t, %v", ok, err)
		}
	})
}
