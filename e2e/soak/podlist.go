// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podList has the pods of the namespace at hand.
type podList struct {
	mu     sync.Mutex
	byName map[string]*corev1.Pod
	rounds int
	// lost are pods that are gone, and that nobody of the soak has deleted.
	lost []*corev1.Pod
	// renamed are the names of pods that were made again, by their first names.
	renamed map[string]string
}

// watch looks at the pods until ctx ends. While the API server is away the last look stands.
func (l *podList) watch(ctx context.Context, b *bed) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if list, err := b.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}); err == nil {
			byName := map[string]*corev1.Pod{}
			for i := range list.Items {
				byName[list.Items[i].Name] = &list.Items[i]
			}
			l.mu.Lock()
			l.byName = byName
			l.rounds++
			l.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *podList) get(name string) *corev1.Pod {
	name = l.nameOf(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byName[name]
}

// rename notes that a pod was made again with another name.
func (l *podList) rename(first, now string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renamed == nil {
		l.renamed = map[string]string{}
	}
	l.renamed[first] = now
}

// nameOf is the name of a pod now, by its first.
func (l *podList) nameOf(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.renamed[name], name)
}

// lose notes that a pod is gone, and that nobody of the soak has deleted it.
func (l *podList) lose(pod *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, pod)
}

// round counts the looks.
func (l *podList) round() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rounds
}

func (l *podList) names() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.byName))
}
