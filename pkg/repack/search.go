// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"cmp"
	"context"
	"slices"

	"github.com/cleave-dra/cleave/pkg/packing"
	"github.com/cleave-dra/cleave/pkg/pools"
)

// search is the replay of restarts.
type search struct {
	cache *pools.Cache
	// nodes with GPUs, by name: where two are equally good, the scheduler takes the first.
	nodes   []*node
	demands []pools.Demand
	// admitted are the nodes that pods may be on, by number of the set, and sets those numbers by what decides.
	admitted []packing.Bits
	sets     map[string]int
	gpus     []*gpu
	whole    int // GPUs
	journal  []change
}

// gpu is one of a node, and who has parts of it.
type gpu struct {
	on    *node
	index int
	pods  []*pod
	// fixed: something on it does not move.
	fixed bool
	// received: a replacement is on it, which is not restarted again.
	received bool
}

// change is one of a node, to be undone.
type change struct {
	node  *node
	pod   *pod
	uses  []packing.Use
	sign  int64
	plans []plan
	whole int
}

// apply adds a pod's devices to a node, or takes them away.
func (s *search) apply(n *node, p *pod, uses []packing.Use, sign int64) {
	s.journal = append(s.journal, change{n, p, uses, sign, n.plans, n.whole})
	s.whole -= n.whole
	n.change(p, uses, sign)
	n.plans = make([]plan, len(s.demands))
	n.recount()
	s.whole += n.whole
}

func (n *node) change(p *pod, uses []packing.Use, sign int64) {
	if sign > 0 {
		n.state.Allocate(uses...)
	} else {
		n.state.Release(uses...)
	}
	n.reserve(p.needs, sign)
}

// undo goes back to an earlier length of the journal.
func (s *search) undo(to int) {
	for i := len(s.journal) - 1; i >= to; i-- {
		c := s.journal[i]
		s.whole += c.whole - c.node.whole
		c.node.change(c.pod, c.uses, -c.sign)
		c.node.plans, c.node.whole = c.plans, c.whole
	}
	s.journal = s.journal[:to]
}

// plan is what would become of a demand on a node.
func (s *search) plan(ctx context.Context, n *node, demand int) *plan {
	p := &n.plans[demand]
	if p.known {
		return p
	}
	p.known = true
	requests, err := s.cache.Requests(ctx, n.published, s.demands[demand])
	if err != nil {
		p.err = err
		return p
	}
	if p.uses, p.fits, p.err = n.state.Fit(requests...); p.fits {
		p.cost = n.state.Cost(p.uses)
	}
	return p
}

// place is where the scheduler would put a pod, as it is chosen by pkg/scheduling: of the nodes that admit it, but for one that
// is cordoned, the one that loses least; of equal ones the first by name.
func (s *search) place(ctx context.Context, p *pod, cordoned *node) (*node, []packing.Use) {
	var best *node
	var chosen *plan
	admitted := s.admitted[p.where]
	for i, n := range s.nodes {
		if !admitted.Has(i) || n == cordoned {
			continue
		}
		found := s.plan(ctx, n, p.demand)
		better := found.fits && (best == nil || packing.Pack.Compare(found.cost, chosen.cost) < 0)
		if found.err == nil && !better || !n.hasRoom(p.needs) {
			continue
		}
		if found.err != nil {
			return nil, nil // the scheduler leaves the choice of a node to others
		}
		best, chosen = n, found
	}
	if best == nil {
		return nil, nil
	}
	return best, chosen.uses
}

// foresee is where the replacement of a pod would be, which is nowhere if it depends on the moment: a Deployment's replacement
// is scheduled while the old pod has its devices, a StatefulSet's once it gave them back. While the pod's node is cordoned, that
// is the same. The pod is gone afterwards.
func (s *search) foresee(ctx context.Context, p *pod, cordon bool) (*node, []packing.Use) {
	if cordon {
		s.apply(p.on, p, p.uses, -1)
		if toleratesCordon(p.object) {
			return nil, nil
		}
		return s.place(ctx, p, p.on)
	}
	before, usesBefore := s.place(ctx, p, nil)
	s.apply(p.on, p, p.uses, -1)
	after, uses := s.place(ctx, p, nil)
	if after != before || !slices.EqualFunc(usesBefore, uses, sameUse) {
		return nil, nil
	}
	return after, uses
}

func sameUse(a, b packing.Use) bool {
	return a.Device == b.Device && slices.Equal(a.Amounts, b.Amounts)
}

// restart replays the restart of a pod that is to leave a GPU. It is false where the replacement finds room only there, or on a
// GPU that is whole.
func (s *search) restart(ctx context.Context, p *pod, leaves *gpu, cordon bool) bool {
	to, uses := s.foresee(ctx, p, cordon)
	if to == nil || slices.ContainsFunc(uses, func(u packing.Use) bool { return to.gpuOf(u) == leaves || to.state.Whole(to.gpuOf(u).index) }) {
		return false
	}
	s.apply(to, p, uses, 1)
	return true
}

// empty replays the restart of all pods on a GPU. It is false, and all is as before, where that does not make the GPU whole,
// or costs another one.
func (s *search) empty(ctx context.Context, g *gpu, cordon bool) ([]*pod, bool) {
	begin := len(s.journal)
	pods := slices.SortedStableFunc(slices.Values(g.pods), func(a, b *pod) int { return b.size() - a.size() })
	stays := slices.ContainsFunc(pods, func(p *pod) bool { return !s.restart(ctx, p, g, cordon) })
	if stays || !g.on.state.Whole(g.index) { // which a taint prevents, too
		s.undo(begin)
		return nil, false
	}
	return pods, true
}

// candidates are the GPUs worth emptying: those with the fewest pods first, then those of which least is allocated.
func (s *search) candidates() []*gpu {
	found := slices.DeleteFunc(slices.Clone(s.gpus), func(g *gpu) bool { return g.fixed || g.received || len(g.pods) == 0 })
	sizes := map[*gpu]int{}
	for _, g := range found {
		for _, p := range g.pods {
			sizes[g] += p.size()
		}
	}
	slices.SortStableFunc(found, func(a, b *gpu) int { return cmp.Or(len(a.pods)-len(b.pods), sizes[a]-sizes[b]) })
	return found
}
