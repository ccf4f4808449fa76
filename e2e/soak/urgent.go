// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// fillers are the pods that fill the GPUs which nobody has: there are rarely more.
	fillers = 6
	// fillSettled is for how long no more of them start once the GPUs are full, and fillTimeout bounds the time until then. Others wait
	// meanwhile.
	fillSettled, fillTimeout = 2 * time.Second, 15 * time.Second
	// fillersStay bounds for how long others wait for those: as long as the longest of the rivals.
	fillersStay = rivalsMost
	// urgentStays is how long one keeps its devices at most.
	urgentStays = 2 * time.Second
	// urgentLeast and urgentMost are for how long there is none, and others have the GPUs.
	urgentLeast, urgentMost = 10 * time.Second, 20 * time.Second
)

// urgentAsks are what urgent pods have. What they ask for, pods that fill GPUs have.
var urgentAsks = []Ask{AskWhole, AskWhole, AskPair, AskSmall, AskSeveral}

// urgentPods lets urgent pods pass, one after the other, until more ends.
func (c *churn) urgentPods(ctx, more context.Context) {
	for i := 0; more.Err() == nil; i++ {
		r := c.plan.random(streamUrgent, i)
		if !sleep(more, between(r, urgentLeast, urgentMost)) {
			break
		}
		c.urgentPod(ctx, more, i)
	}
}

// urgentPod fills the GPUs, and then has a pod come that others must be evicted for.
func (c *churn) urgentPod(ctx, more context.Context, index int) {
	r := c.plan.random(streamUrgent, index)
	prefix := fmt.Sprintf("filler-%05d-", index)
	full, end := context.WithTimeout(ctx, fillersStay)
	var filling sync.WaitGroup
	defer filling.Wait()
	defer end()
	for n := range fillers {
		pod := Shape{Name: "filler", Claims: []Ask{AskWhole}}.queued(fmt.Sprintf("%s%d", prefix, n), anyOf(r, kubeScheduler, cleaveScheduler),
			anyOf(r, batch, backfill))
		filling.Go(func() { c.serve(ctx, full, pod) })
	}
	c.waitFull(more, prefix)
	shape := Shape{Name: "urgent", Claims: []Ask{urgentAsks[r.IntN(len(urgentAsks))]}}
	pod := shape.queued(fmt.Sprintf("urgent-%05d", index), cleaveScheduler, interactive)
	if c.passPod(ctx, Pod{Shape: shape, Hold: between(r, 0, urgentStays)}, pod) {
		c.report.claimsHad(len(shape.Claims))
	}
}

// waitFull waits until no more pods with a prefix start.
func (c *churn) waitFull(ctx context.Context, prefix string) {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	last, since := -1, time.Now()
	_ = workload.Until(ctx, "the GPUs to be full", func(context.Context) (bool, string, error) { // they may not be in time
		n := 0
		for _, name := range c.pods.names() {
			if pod := c.pods.get(name); pod != nil && strings.HasPrefix(name, prefix) && isRunning(pod) {
				n++
			}
		}
		if n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) >= fillSettled, "", nil
	})
}
