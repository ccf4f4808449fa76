// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cleave-dra/cleave/e2e/packing"
)

// mixedLoad is what pods of many kinds request, in percent of the compute slices that there are.
const mixedLoad = 80

// grace is how long a pod that the scheduler found no node for may still find one: cleave-scheduler looks at all nodes in a
// second attempt.
const grace = 2 * time.Second

// mixed measures what is rejected of pods of many kinds that come and go. A pod that does not fit is deleted, as one that
// another cluster takes.
func (b *bench) mixed(ctx context.Context, r *report) error {
	if err := b.addNodes(ctx, b.mixedNodes); err != nil {
		return err
	}
	for _, name := range b.schedulers {
		err := b.with(ctx, name, func(s *scheduler) error {
			tally, err := b.replay(ctx, s)
			r.set(fmt.Sprintf(rejected, b.mixedPods, b.mixedNodes, mixedLoad), s.name, 100*tally.Share())
			fmt.Fprintf(os.Stderr, "%s: %d of %d compute slices rejected\n", s.name, tally.Rejected, tally.Requested)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// running is a pod of a trace and when it ends.
type running struct {
	name  string
	until float64
}

// replay runs a trace one pod after the other, so that a scheduler's speed does not matter. The cluster is first filled to
// the load with pods of the same trace, which do not count.
func (b *bench) replay(ctx context.Context, s *scheduler) (packing.Tally, error) {
	mix := packing.ClusterMix
	gpus := b.mixedNodes * b.published.gpus()
	fill := mix.Running(mixedLoad, gpus)
	trace := packing.NewTrace(mix, mixedLoad, gpus, fill+b.mixedPods, 1)
	var tally packing.Tally
	var live []running
	var now float64
	for i, request := range trace {
		counted := i >= fill
		if counted {
			now = request.Arrive
		}
		var gone []string
		live = slices.DeleteFunc(live, func(p running) bool {
			if p.until <= now {
				gone = append(gone, p.name)
			}
			return p.until <= now
		})
		if err := b.remove(ctx, gone); err != nil {
			return tally, err
		}
		ok, name, err := b.tryPlace(ctx, s, request)
		if err != nil {
			return tally, err
		}
		if ok {
			live = append(live, running{name, lifetime(request, counted, trace[fill-1].Arrive)})
		}
		if counted {
			tally.Requested += request.Kind.Slices
		}
		if counted && !ok {
			tally.Rejected += request.Kind.Slices
		}
		if i%500 == 499 {
			if err := b.allocatedOnce(ctx, namesOf(live)); err != nil {
				return tally, err
			}
			fmt.Fprintf(os.Stderr, "%s: %d of %d mixed pods, %d run\n", s.name, i+1, len(trace), len(live))
		}
	}
	return tally, b.remove(ctx, namesOf(live))
}

func namesOf(pods []running) []string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.name)
	}
	return names
}

// lifetime is when a pod of a trace ends. Holding times have no memory, so that those of the first pods can all begin at
// the end of the filling.
func lifetime(r packing.Request, counted bool, filled float64) float64 {
	if counted {
		return r.Leave
	}
	return filled + r.Leave - r.Arrive
}

// tryPlace creates a pod and waits until it is bound or has no place, when it is removed.
func (b *bench) tryPlace(ctx context.Context, s *scheduler, r packing.Request) (ok bool, name string, err error) {
	names := b.names("mixed", 1)
	if _, err := b.create(ctx, s.name, r.Kind.Class, max(1, r.Kind.Count), names); err != nil {
		return false, "", err
	}
	wait, cancel := context.WithTimeout(ctx, placeTimeout)
	defer cancel()
	err = b.watch.until(wait, func(pods map[string]placed) bool { return pods[names[0]].node != "" || pods[names[0]].refused })
	if err != nil {
		return false, "", fmt.Errorf("wait for pod %s: %w", names[0], err)
	}
	if b.watch.get(names[0]).refused {
		wait, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		// The end of the wait is an answer, too.
		_ = b.watch.until(wait, func(pods map[string]placed) bool { return pods[names[0]].node != "" })
	}
	if b.watch.get(names[0]).node != "" {
		return true, names[0], nil
	}
	return false, "", b.remove(ctx, names)
}
