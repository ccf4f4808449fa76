// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// mayFit reports whether what a pod looks for may fit on a node, as far as the measure can say: as it is, or once others are evicted.
func (c *cluster) mayFit(ctx context.Context, w waiter, name string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, v := range c.views[name] {
		if c.elsewhere[v.driver] > 0 {
			return true
		}
	}
	p, passed := c.planOn(ctx, name, w.query)
	if passed != "" || p.fits || !p.complete || w.rules == nil {
		return passed != "" || p.fits
	}
	return !slices.ContainsFunc(p.short, func(v *view) bool { return !mayFitAlone(ctx, c, v, w) })
}

// aloneKey is what it depends on whether a demand fits without others, besides the allocations of a view.
type aloneKey struct {
	demand   string // and holds
	priority int32
	rules    *Rules
}

// alone is whether a demand fits without others, until one more of those may be evicted; zero for ever.
type alone struct {
	fits  bool
	until time.Time
}

// mayFitAlone reports whether a demand fits on a view without the pods that may be evicted for it. It is for answers to events, of which
// there are many: what budgets say, and other resources, is left to the attempt.
func mayFitAlone(ctx context.Context, c *cluster, v *view, w waiter) bool {
	holds, counted := c.holds.keyed(v.of, w.holder)
	key, now := aloneKey{w.demand.Key + counted, w.priority, w.rules}, time.Now()
	if known, ok := v.alone[key]; ok && (known.until.IsZero() || now.Before(known.until)) {
		return known.fits
	}
	var found alone
	evicting := &pools.Evicting{Priority: w.priority, Now: now,
		May: func(pod *corev1.Pod) bool {
			ok, at := w.rules.Evictable(pod, schedulinghelpers.PodPriority(pod), w.priority, now)
			if !ok && !at.IsZero() && (found.until.IsZero() || at.Before(found.until)) {
				found.until = at
			}
			return ok
		},
		Find: func(namespace, name string, uid types.UID) (*corev1.Pod, bool) {
			pod := c.holds.pod(namespace, name, uid)
			return pod, pod == nil
		},
	}
	released := map[types.UID]bool{}
	for _, claim := range v.claims(c) {
		if evicting.EndOf(claim).Stays == "" {
			released[claim.UID] = true
		}
	}
	state := v.without(c, released)
	v.keep(c, state, holds, released)
	p := v.predict(ctx, c.cache, state, w.demand)
	found.fits = p.fits || p.err != nil
	if len(v.alone) >= maxPlans {
		clear(v.alone)
	}
	v.alone[key] = found
	return found.fits
}
