// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// later tries pods again at a time of which no event of the API server tells: when others may be evicted that were safe until then, or
// when those that were chosen are deleted.
type later struct {
	handle framework.Handle
	mutex  sync.Mutex
	pods   map[types.UID]appointment
	added  chan struct{}
}

type appointment struct {
	pod *corev1.Pod
	at  time.Time
}

// maxAppointments bound the pods: of those that are left out, the scheduler tries each every 5 minutes.
const maxAppointments = 10_000

func newLater(handle framework.Handle) *later {
	return &later{handle: handle, pods: map[types.UID]appointment{}, added: make(chan struct{}, 1)}
}

// soonest is the shortest time after which a pod is tried again: in a busy cluster, the time of one pod or another is always over.
const soonest = 10 * time.Second

// add tries a pod at a time; zero for never.
func (l *later) add(pod *corev1.Pod, at time.Time) {
	if at.IsZero() {
		return
	}
	if least := time.Now().Add(soonest); at.Before(least) {
		at = least
	}
	l.set(pod, at)
}

// set tries a pod at a time, however soon.
func (l *later) set(pod *corev1.Pod, at time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.pods) >= maxAppointments {
		return
	}
	l.pods[pod.UID] = appointment{pod, at}
	select {
	case l.added <- struct{}{}:
	default:
	}
}

// run ends with its context.
func (l *later) run(ctx context.Context) {
	for {
		timer := time.NewTimer(l.due(klog.FromContext(ctx), time.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-l.added:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// due queues the pods whose time has come, and returns how long it is until that of the next; an hour where there is none.
func (l *later) due(logger klog.Logger, now time.Time) time.Duration {
	l.mutex.Lock()
	next, ready := now.Add(time.Hour), map[string]*corev1.Pod{}
	maps.DeleteFunc(l.pods, func(_ types.UID, a appointment) bool {
		if !a.at.After(now) {
			ready[a.pod.Namespace+"/"+a.pod.Name] = a.pod
			return true
		}
		if a.at.Before(next) {
			next = a.at
		}
		return false
	})
	l.mutex.Unlock()
	if len(ready) > 0 {
		l.handle.Activate(logger, ready)
	}
	return next.Sub(now)
}
