// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// rankAfter is how long what claims hold must have stood still before whole GPUs change their order: claims come and go in
// bursts. Where it never stands still, the order is looked at after rankAtMost.
const (
	rankAfter  = 250 * time.Millisecond
	rankAtMost = 2 * time.Second
)

// ranking keeps the order of the whole GPUs in line with what claims hold.
type ranking struct {
	// changed has a value after what claims hold may have changed.
	changed chan struct{}
	// due ticks when the order is to be looked at again; nil while nothing has changed.
	due <-chan time.Time
	// since is when the first of the changes came that due is for.
	since time.Time
	// order is what was published last; nil if that is not known.
	order []string
}

func newRanking() ranking { return ranking{changed: make(chan struct{}, 1)} }

// start has the order looked at in a while, later if more changes until then.
func (r *ranking) start() {
	if r.due == nil {
		r.since = time.Now()
	}
	if r.due == nil || time.Since(r.since) < rankAtMost {
		r.due = time.After(rankAfter)
	}
}

// published remembers an order that is published.
func (r *ranking) published(order []string) { r.order = order }

// rank publishes the whole GPUs in another order if what is free asks for one. It does not look at the hardware, unless
// something was published only because claims held it.
func (s *service) rank(ctx context.Context, hw *hardware, p *publisher) {
	s.ranking.due = nil
	s.engine.Partitions.LeaveMIGMode(ctx)
	if s.keepsForClaims(hw) {
		s.reoffer(ctx, hw, p)
		return
	}
	node, view := s.view(hw)
	order := view.WholeGPUs(node)
	if slices.Equal(order, s.ranking.order) {
		return
	}
	klog.FromContext(ctx).V(4).Info("Whole GPUs change their order with what is free", "order", order)
	s.publish(hw, p)
}

// freeGPUs tells of a GPU whether no claim holds anything of it. Claims with admin access hold nothing.
func freeGPUs(all []*records.Record) func(g *gpu.GPU) bool {
	held := map[string]bool{}
	for _, r := range all {
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess {
				held[d.GPU] = true
			}
		}
	}
	return func(g *gpu.GPU) bool { return !held[g.PCI.DeviceName()] }
}
