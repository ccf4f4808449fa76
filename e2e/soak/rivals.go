// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// rivalsEach is how many rivals each scheduler has at once. All together take less than a GPU: the one that room leaves.
	rivalsEach = 3
	// rivalsLeast and rivalsMost are how long they keep their devices. A collision is ended after some 17 seconds, so half of them do not
	// end by themselves. For longer, others would wait: once a pod is evicted, schedulers count its devices as free, though the other has
	// them (allocateddevices.go of kube-scheduler 1.37 has a set), and give them away again.
	rivalsLeast, rivalsMost = 10 * time.Second, 25 * time.Second
)

// rivals lets small pods of both schedulers arrive at once, again and again, until more ends. The schedulers do not see each other's
// pending allocations, and give some devices twice.
func (c *churn) rivals(ctx, more context.Context) {
	for i := 0; more.Err() == nil; i++ {
		r := c.plan.random(streamRivals, i)
		class, stay := anyOf(r, batch, backfill), between(r, rivalsLeast, rivalsMost)
		over, done := context.WithTimeout(more, stay)
		var all sync.WaitGroup
		for n := range 2 * rivalsEach {
			scheduler := []string{kubeScheduler, cleaveScheduler}[n%2]
			pod := Shape{Name: "rival", Claims: []Ask{AskSmall}}.queued(fmt.Sprintf("rival-%05d-%d", i, n), scheduler, class)
			all.Go(func() { c.serve(ctx, over, pod) })
		}
		all.Wait()
		done()
	}
}

// serve keeps a pod of a queue until over ends, as a controller does: one that is evicted is made again.
func (c *churn) serve(ctx, over context.Context, pod *corev1.Pod) {
	c.report.podCreated()
	name := pod.Name
	for made := 0; over.Err() == nil; made++ {
		if made > 0 {
			pod.Name = fmt.Sprintf("%s-more-%d", name, made)
		}
		err := c.bed.run(over, c.pods, pod, podTimeout)
		if err != nil && !errors.Is(err, errEnded) {
			break // no time is left, or there was no room
		}
		if err == nil {
			c.report.claimsHad(len(pod.Spec.ResourceClaims))
			c.pods.waitGone(over, pod.Name)
		} else if err := c.bed.endPod(ctx, c.pods, pod.Name, false); err != nil {
			break
		}
	}
	if err := c.bed.endPod(ctx, c.pods, pod.Name, false); err != nil && ctx.Err() == nil {
		c.report.violation("pod", "%s: %v", pod.Name, err)
	}
}

// waitGone waits until a pod that was there is gone, or ctx ends, and notes that it went by itself.
func (l *podList) waitGone(ctx context.Context, name string) {
	was := l.get(name)
	if was == nil {
		return // it is made again at once, and was not seen
	}
	err := workload.Until(ctx, "it to go", func(context.Context) (bool, string, error) {
		now := l.get(name)
		return now == nil || now.UID != was.UID, "", nil
	})
	if err == nil {
		l.lose(was)
	}
}
