// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// queue has the pods that wait for a place, by kind, in the order in which they came. A workload has one if its pods have priorities.
type queue struct {
	kinds [][]waiting
	// order are the kinds, the most important first.
	order []int
	// waits are those of counted pods that have ended, by kind: from when they came to when they began for the last time.
	waits [][]time.Duration
}

// waiting is a pod without a place. It runs for as long as it would have from its arrival on.
type waiting struct {
	arrival
	name    string
	counted bool
}

// queued reports whether pods without a place wait.
func (w *Workload) queued() bool {
	return slices.ContainsFunc(w.Pods, func(p Pods) bool { return p.Priority != nil })
}

// priority of a kind.
func (p *Pods) priority() int32 {
	if p.Priority == nil {
		return 0
	}
	return *p.Priority
}

func newQueue(w *Workload) *queue {
	q := &queue{kinds: make([][]waiting, len(w.Pods)), waits: make([][]time.Duration, len(w.Pods))}
	for i := range w.Pods {
		q.order = append(q.order, i)
	}
	slices.SortStableFunc(q.order, func(a, b int) int { return cmp.Compare(w.Pods[b].priority(), w.Pods[a].priority()) })
	return q
}

// try gives pods that wait a place, as far as there is room. Less important ones may go before others that do not fit.
func (r *replay) try(ctx context.Context, now time.Duration) error {
	for _, kind := range r.queue.order {
		for len(r.queue.kinds[kind]) > 0 {
			next := r.queue.kinds[kind][0]
			placed, err := r.place(ctx, kind, next.name)
			if err != nil && !errors.Is(err, errGivenUp) {
				return err
			}
			if placed == nil {
				break
			}
			r.queue.kinds[kind] = r.queue.kinds[kind][1:]
			r.start(placed, next, now)
		}
	}
	return nil
}

// start notes that a pod has a place.
func (r *replay) start(placed *placement, pod waiting, now time.Duration) {
	until := now + pod.until - pod.at
	if until < now { // beyond the last time that there is
		until = math.MaxInt64
	}
	r.run(&leaving{placement: placed, until: until, pod: pod, since: now})
}

// enqueue adds a pod that has just arrived, and gives it a place if there is one, or others can be evicted for it.
func (r *replay) enqueue(ctx context.Context, pod waiting) error {
	placed, err := r.place(ctx, pod.kind, pod.name)
	if err != nil && !errors.Is(err, errGivenUp) {
		return err
	}
	if placed == nil && r.evicts {
		if placed, err = r.evict(ctx, pod); err != nil {
			return err
		}
	}
	if placed != nil {
		r.start(placed, pod, pod.at)
		return r.try(ctx, pod.at) // those that were evicted may fit elsewhere
	}
	r.queue.kinds[pod.kind] = append(r.queue.kinds[pod.kind], pod)
	return nil
}

// evict makes room for a pod at the least loss, and places it; nil where no eviction does. Those that are evicted begin again, after all
// others of their kind that wait.
func (r *replay) evict(ctx context.Context, pod waiting) (*placement, error) {
	priority := r.requests[pod.kind].pods.priority()
	on := make([][]int, len(r.nodes)) // indices of what runs
	for i, l := range r.running {
		if r.requests[l.request].pods.priority() < priority {
			on[l.node] = append(on[l.node], i)
		}
	}
	best, at, least := []int(nil), -1, packing.Loss{}
	for n := range r.nodes {
		if len(on[n]) == 0 {
			continue
		}
		var holders []packing.Holder
		for _, i := range on[n] {
			l := r.running[i]
			holders = append(holders, packing.Holder{Uses: l.uses, Priority: r.requests[l.request].pods.priority(), Pods: 1,
				Since: int64(l.since / time.Second)})
		}
		victims, loss, fits, err := r.nodes[n].state.Evict(holders, nil, r.requests[pod.kind].fits...)
		if errors.Is(err, packing.ErrSearch) || err == nil && (!fits || len(victims) == 0) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find pods to evict: %w", err)
		}
		if at < 0 || loss.Compare(least) < 0 {
			at, least, best = n, loss, nil
			for _, v := range victims {
				best = append(best, on[n][v])
			}
		}
	}
	if at < 0 {
		return nil, nil //nolint:nilnil // no place is no error
	}
	r.giveBack(best)
	placed, err := r.allocate(ctx, r.nodes, at, pod.kind, pod.name)
	if err != nil {
		return nil, fmt.Errorf("place a pod that others were evicted for: %w", err)
	}
	return placed, nil
}

// giveBack evicts what runs at some indices, in their order.
func (r *replay) giveBack(victims []int) {
	for _, i := range slices.Backward(victims) {
		l := r.running[i]
		r.release(r.nodes, l.placement)
		r.running = slices.Delete(r.running, i, i+1)
		kind := &r.result.Kinds[l.request]
		if l.pod.counted {
			kind.Evicted++
		}
		r.queue.kinds[l.request] = append(r.queue.kinds[l.request], l.pod)
	}
}

// ended notes how long a pod has waited.
func (r *replay) ended(l *leaving) {
	if l.pod.counted {
		r.queue.waits[l.request] = append(r.queue.waits[l.request], l.since-l.pod.at)
	}
}

// finish sums up how long pods waited. Those that wait at the end have waited until then.
func (r *replay) finish(end time.Duration) {
	for _, l := range r.running {
		r.ended(l)
	}
	for kind, all := range r.queue.waits {
		for _, pod := range r.queue.kinds[kind] {
			if pod.counted {
				all = append(all, end-pod.at)
			}
		}
		slices.Sort(all)
		if len(all) > 0 {
			r.result.Kinds[kind].Waited = &Waited{Half: all[len(all)/2], Most: all[min(len(all)-1, len(all)*95/100)]}
		}
	}
}
