// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestAdvise_Ties: of a and b, which are equally good for the stray, the scheduler may choose either. So neither is emptied
// afterwards: if the stray is there, restarts of the three others free nothing.
func TestAdvise_Ties(t *testing.T) {
	b := newBed(t, "hgx-h100", nodeNames(3)...)
	for _, name := range []string{"a1", "a2", "a3"} {
		b.pod(name, "gpu-1", small, 1)
	}
	for _, name := range []string{"b1", "b2", "b3"} {
		b.pod(name, "gpu-2", small, 1)
	}
	b.pod("stray", "gpu-3", small, 1)
	a := b.advise()
	if len(a.Steps) != 1 || a.Steps[0].Pods[0].Pod != "stray" || a.WholeThen != a.WholeNow+1 {
		t.Fatalf("got %+v, want the restart of stray alone", a)
	}
	checkGolden(t, "ties", a)
}

// TestAdvise_AnyChoice: whichever of equally good nodes the scheduler chooses, each step frees what it says.
func TestAdvise_AnyChoice(t *testing.T) {
	steps, ties := 0, 0
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 5))
		b := randomBed(t, "hgx-h100", 6, 20+random.IntN(30), random)
		a := b.advise()
		for range 2 {
			n := b.follow(a, random)
			steps, ties = steps+len(a.Steps), ties+n
		}
	}
	if steps < 300 || ties < 50 {
		t.Errorf("only %d steps with %d ties were replayed", steps, ties)
	}
	t.Logf("%d steps, %d ties", steps, ties)
}

// follow replays the restarts of an advice, and counts the ties.
func (b *bed) follow(a *Advice, random *rand.Rand) (ties int) {
	b.Helper()
	s, _ := b.cluster().load()
	for i, step := range a.Steps {
		before := s.whole
		for _, m := range step.Pods {
			_, others := b.choose(s, m, step.Cordon != "", random)
			ties += others
		}
		if got := s.whole - before; got != len(step.Frees) {
			b.Fatalf("step %d frees %d GPUs, the advice says %d: %+v", i+1, got, len(step.Frees), step)
		}
	}
	if s.whole != a.WholeThen {
		b.Fatalf("%d GPUs are whole after all restarts, the advice says %d", s.whole, a.WholeThen)
	}
	return ties
}

// TestAdvise_TieWithOwnNode: the first of two pods of a GPU may go to another GPU of its node, or to another node. In the first
// case the second pod may find no better place than the GPU that is to be emptied, unless the node is cordoned.
func TestAdvise_TieWithOwnNode(t *testing.T) {
	b := newBed(t, "hgx-h100", nodeNames(2)...)
	keep := map[string][]string{"gpu-1": {"0 1 2 3 4 5", "0 1 2"}, "gpu-2": {"0 1 2 3 4 5", "5 6"}}
	for _, node := range nodeNames(2) {
		for i := range 14 {
			b.pod(fmt.Sprint(node, "-", i), node, small, 1)
		}
	}
	for i := len(b.pods) - 1; i >= 0; i-- {
		node, device := b.pods[i].Spec.NodeName, devicesOf(b.o.Claims[i].Status.Allocation)[0]
		if gpu := i % 14 / 7; !strings.Contains(keep[node][gpu], device[len(device)-1:]) {
			b.end(i)
		}
	}
	a := b.advise()
	if len(a.Steps) == 0 {
		t.Fatalf("no step: %+v", a)
	}
	for seed := range uint64(50) {
		b.follow(a, rand.New(rand.NewPCG(seed, 6)))
	}
}

// choose replays a restart on any of the nodes that are equally good, before or after the old pod gave its devices back.
func (b *bed) choose(s *search, m Move, cordoned bool, random *rand.Rand) (to Place, ties int) {
	b.Helper()
	var moved *pod
	for _, g := range s.gpus {
		if i := slices.IndexFunc(g.pods, func(p *pod) bool { return p.object.Name == m.Pod }); i >= 0 {
			moved = g.pods[i]
		}
	}
	var cordon *node
	if cordoned {
		cordon = moved.on
	}
	spots := s.place(b.Context(), moved, cordon)
	s.apply(moved.on, moved, moved.uses, -1)
	if random.IntN(2) == 0 {
		spots = s.place(b.Context(), moved, cordon)
	}
	if len(spots) == 0 {
		b.Fatalf("%s has no place", m.Pod)
	}
	chosen := spots[random.IntN(len(spots))]
	places := slices.Concat([]Place{m.To}, m.Or)
	if !slices.ContainsFunc(places, func(p Place) bool { return p.Node == chosen.node.name }) {
		b.Fatalf("%s is on %s, the advice says %v", m.Pod, chosen.node.name, places)
	}
	s.apply(chosen.node, moved, chosen.uses, 1)
	return chosen.node.place(chosen.uses), len(spots) - 1
}
