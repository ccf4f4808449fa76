// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"cmp"
	"context"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// search is the replay of restarts.
type search struct {
	cache *pools.Cache
	// nodes with GPUs, by name.
	nodes   []*node
	demands []pools.Demand
	// admitted are the nodes that pods may be on, by number of the set, and sets those numbers by what decides.
	admitted []packing.Bits
	sets     map[string]int
	gpus     []*gpu
	whole    int // GPUs
	journal  []change
	moves    []move
	// unsure is how many moves went to a node that is not known.
	unsure int
}

// spot is where a pod would get devices, and what that costs.
type spot struct {
	node *node
	uses []packing.Use
	cost packing.Cost
}

// move is a restart that was replayed.
type move struct {
	pod *pod
	to  []spot
	// unsure: other plugins of the scheduler choose among the spots, so that no node got the devices.
	unsure bool
	// spoiled are the nodes that are not known anymore since then.
	spoiled []*node
}

// mark is how far the replay is.
type mark struct{ changes, moves int }

func (s *search) mark() mark { return mark{len(s.journal), len(s.moves)} }

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

// undo restores an earlier state.
func (s *search) undo(to mark) {
	for i := len(s.journal) - 1; i >= to.changes; i-- {
		c := s.journal[i]
		s.whole += c.whole - c.node.whole
		c.node.change(c.pod, c.uses, -c.sign)
		c.node.plans, c.node.whole = c.plans, c.whole
	}
	for _, m := range s.moves[to.moves:] {
		if m.unsure {
			s.unsure--
		}
		for _, n := range m.spoiled {
			n.unsure = false
		}
	}
	s.journal, s.moves = s.journal[:to.changes], s.moves[:to.moves]
}

// plan predicts a demand on a node.
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
	var rank int
	if p.uses, rank, p.fits, p.err = n.state.FitRanked(requests...); p.fits {
		p.cost = n.state.Cost(p.uses)
		p.cost.Rank = rank
	}
	return p
}

// place is where the scheduler would put a pod, as it is chosen by pkg/scheduler/gpupacking: of the nodes that admit it, but for one that
// is cordoned, those that lose least. Among equal ones, other plugins choose. It is nowhere where that cannot be said.
func (s *search) place(ctx context.Context, p *pod, cordoned *node) []spot {
	var known, unsure []spot
	admitted := s.admitted[p.where]
	for i, n := range s.nodes {
		if !admitted.Has(i) || n == cordoned {
			continue
		}
		found := s.plan(ctx, n, p.demand)
		if found.err == nil && !found.fits || !n.hasRoom(p.needs) {
			continue
		}
		if found.err != nil {
			return nil // the scheduler leaves the choice of a node to others
		}
		at := spot{n, found.uses, found.cost}
		if n.unsure {
			unsure = append(unsure, at)
			continue
		}
		if len(known) > 0 && costs(at, known[0]) < 0 {
			known = known[:0]
		}
		if len(known) == 0 || costs(at, known[0]) == 0 {
			known = append(known, at)
		}
	}
	if len(unsure) == 0 {
		return known
	}
	return s.among(ctx, p, known, unsure)
}

func costs(a, b spot) int { return packing.Pack.Compare(a.cost, b.cost) }

// among is where a pod would be if some nodes are not known. Each unsure move changed one of them, so that of more nodes than
// there were such moves, one is as it was: the pod costs no more than there, or on the best known node. So it opens no GPU, if
// that costs more everywhere.
func (s *search) among(ctx context.Context, p *pod, known, unsure []spot) []spot {
	slices.SortStableFunc(unsure, costs)
	var most spot
	switch {
	case len(unsure) > s.unsure && (len(known) == 0 || costs(unsure[s.unsure], known[0]) < 0):
		most, known = unsure[s.unsure], nil
	case len(known) > 0:
		most = known[0]
	default:
		return nil
	}
	for _, at := range unsure {
		if len(at.uses) > 1 || s.opening(ctx, at.node, p.demand) <= most.cost.Lost {
			return nil
		}
	}
	opens := func(at spot) bool { return at.node.spends(at.uses, nil) }
	return slices.Concat(slices.DeleteFunc(unsure, opens), known)
}

// opening is the loss of a demand on an untouched GPU of a node.
func (s *search) opening(ctx context.Context, n *node, demand int) int {
	if n.openings == nil {
		n.openings = map[int]int{}
	}
	lost, known := n.openings[demand]
	if !known {
		empty := n.published.NewState()
		if requests, err := s.cache.Requests(ctx, n.published, s.demands[demand]); err == nil {
			if uses, fits, err := empty.Fit(requests...); fits && err == nil {
				lost = empty.Cost(uses).Lost
			}
		}
		n.openings[demand] = lost
	}
	return lost
}

// predict is where the replacement of a pod would be, which is nowhere if it depends on the moment: a Deployment's replacement
// is scheduled while the old pod has its devices, a StatefulSet's once it gave them back. While the pod's node is cordoned, that
// is the same. The pod is gone afterwards.
func (s *search) predict(ctx context.Context, p *pod, cordon bool) []spot {
	if cordon {
		s.apply(p.on, p, p.uses, -1)
		if toleratesCordon(p.object) {
			return nil
		}
		return s.place(ctx, p, p.on)
	}
	before := s.place(ctx, p, nil)
	s.apply(p.on, p, p.uses, -1)
	after := s.place(ctx, p, nil)
	if !slices.EqualFunc(before, after, sameSpot) {
		return nil
	}
	return after
}

func sameSpot(a, b spot) bool { return a.node == b.node && slices.EqualFunc(a.uses, b.uses, sameUse) }

func sameUse(a, b packing.Use) bool {
	return a.Device == b.Device && slices.Equal(a.Amounts, b.Amounts)
}

// restart replays the restart of a pod that is to leave a GPU. It is false where the replacement may be there, or on a GPU
// that is whole.
func (s *search) restart(ctx context.Context, p *pod, leaves *gpu, cordon bool) bool {
	if p.on.unsure { // an earlier replacement may be there, and what room is left beside it is not known
		return false
	}
	to := s.predict(ctx, p, cordon)
	if len(to) == 0 || slices.ContainsFunc(to, func(at spot) bool { return at.node.spends(at.uses, leaves) }) {
		return false
	}
	s.replace(p, to)
	return true
}

// spends reports whether uses of a node are on a certain GPU, or on one that is whole.
func (n *node) spends(uses []packing.Use, leaves *gpu) bool {
	return slices.ContainsFunc(uses, func(u packing.Use) bool { return n.gpuOf(u) == leaves || n.state.Whole(n.gpuOf(u).index) })
}

// replace puts the replacement of a pod where it would be. If that is not known, no GPU of the nodes in question is emptied
// anymore: the replacement may be there.
func (s *search) replace(p *pod, to []spot) {
	m := move{pod: p, to: to, unsure: len(to) > 1 || to[0].node.unsure}
	if m.unsure {
		s.unsure++
		for _, at := range to {
			if !at.node.unsure {
				at.node.unsure = true
				m.spoiled = append(m.spoiled, at.node)
			}
		}
	} else {
		s.apply(to[0].node, p, to[0].uses, 1)
	}
	s.moves = append(s.moves, m)
}

// empty replays the restart of all pods on a GPU. It is false, and all is as before, where that does not make the GPU whole,
// or costs another one.
func (s *search) empty(ctx context.Context, g *gpu, cordon bool) bool {
	begin := s.mark()
	pods := slices.SortedStableFunc(slices.Values(g.pods), func(a, b *pod) int { return b.size() - a.size() })
	stays := slices.ContainsFunc(pods, func(p *pod) bool { return !s.restart(ctx, p, g, cordon) })
	if stays || !g.on.state.Whole(g.index) { // which a taint prevents, too
		s.undo(begin)
		return false
	}
	return true
}

// movable reports whether a GPU may be emptied.
func (g *gpu) movable() bool { return !g.fixed && !g.received && !g.on.unsure && len(g.pods) > 0 }

// candidates are the GPUs worth emptying: those with the fewest pods first, then those with the least allocated.
func (s *search) candidates() []*gpu {
	found := slices.DeleteFunc(slices.Clone(s.gpus), func(g *gpu) bool { return !g.movable() })
	sizes := map[*gpu]int{}
	for _, g := range found {
		for _, p := range g.pods {
			sizes[g] += p.size()
		}
	}
	slices.SortStableFunc(found, func(a, b *gpu) int { return cmp.Or(len(a.pods)-len(b.pods), sizes[a]-sizes[b]) })
	return found
}
