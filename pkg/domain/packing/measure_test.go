// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// emptyState is a node of a model that offers all tiers.
func emptyState(t *testing.T, model string) *packing.State {
	t.Helper()
	list := nodeslices.Objects(offeredNode(t, model, true), v1alpha1.Group, model)
	var published []*resourceapi.ResourceSlice
	for i := range list.Items {
		published = append(published, &list.Items[i])
	}
	node, err := pools.NewCache().Node(published)
	if err != nil {
		t.Fatal(err)
	}
	return node.NewState()
}

// request asks for devices of a shape.
func request(s *packing.State, shape string, count int) packing.Request {
	m := s.Model()
	r := packing.Request{Count: count, Match: packing.NewBits(len(m.Devices))}
	for i := range m.Devices {
		if m.Devices[i].Shape == shape {
			r.Match.Set(i)
		}
	}
	return r
}

// take allocates devices of a shape, which must fit.
func take(t *testing.T, s *packing.State, shape string, count int) []packing.Use {
	t.Helper()
	uses, ok, err := s.Fit(request(s, shape, count))
	if err != nil || !ok {
		t.Fatalf("%d of %s: they do not fit, %v", count, shape, err)
	}
	s.Allocate(uses...)
	return uses
}

func shapes(m *packing.Model) []string {
	var all []string
	for i := range m.Devices {
		if !slices.Contains(all, m.Devices[i].Shape) {
			all = append(all, m.Devices[i].Shape)
		}
	}
	return all
}

// fill allocates random shapes and gives some back.
func fill(random *rand.Rand, s *packing.State, steps int) (running [][]packing.Use) {
	all := shapes(s.Model())
	for range steps {
		if n := len(running); n > 0 && random.IntN(3) == 0 {
			at := random.IntN(n)
			s.Release(running[at]...)
			running = slices.Delete(running, at, at+1)
			continue
		}
		if uses, ok, err := s.Fit(request(s, all[random.IntN(len(all))], 1+random.IntN(2))); ok && err == nil {
			s.Allocate(uses...)
			running = append(running, uses)
		}
	}
	return running
}

// TestState_ReleaseUndoesAllocate allocates at random, and gives all back in another order.
func TestState_ReleaseUndoesAllocate(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		empty := emptyState(t, model)
		for seed := range uint64(20) {
			random := rand.New(rand.NewPCG(seed, 1))
			s := empty.Clone()
			running := fill(random, s, 60)
			random.Shuffle(len(running), func(i, j int) { running[i], running[j] = running[j], running[i] })
			if len(running) > 0 && s.Equal(empty) {
				t.Fatalf("%s, seed %d: %d allocations leave no trace", model, seed, len(running))
			}
			for _, uses := range running {
				s.Release(uses...)
			}
			if !s.Equal(empty) || s.Untouched() != len(s.Model().GPUs) || packing.Fragmentation(s) != 0 {
				t.Fatalf("%s, seed %d: the state is not the empty one after all is released", model, seed)
			}
		}
	}
}

// TestCost_TighterGPU: where the same partition fits two equal GPUs and what is free of the one is free of the other too,
// it never costs more on the one.
func TestCost_TighterGPU(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		empty := emptyState(t, model)
		m := empty.Model()
		if len(m.GPUs) < 2 {
			continue
		}
		twin := map[int]int{} // devices of GPU 0 by the same of GPU 1
		for i := range m.Devices {
			for j := range m.Devices {
				if m.Devices[i].GPU == 1 && m.Devices[j].GPU == 0 && m.Devices[i].Shape == m.Devices[j].Shape && sameNeeds(m, i, j) {
					twin[i] = j
				}
			}
		}
		for seed := range uint64(30) {
			random := rand.New(rand.NewPCG(seed, 2))
			s := empty.Clone()
			// GPU 0 has all that GPU 1 has, and more.
			for range 1 + random.IntN(8) {
				i := random.IntN(len(m.Devices))
				switch _, ok := twin[i]; {
				case ok && s.Fits(i) && s.Fits(twin[i]):
					s.Allocate(packing.Use{Device: i}, packing.Use{Device: twin[i]})
				case m.Devices[i].GPU == 0 && s.Fits(i):
					s.Allocate(packing.Use{Device: i})
				}
			}
			for i, j := range twin {
				if !s.Fits(i) || !s.Fits(j) {
					continue
				}
				loose, tight := s.Cost([]packing.Use{{Device: i}}), s.Cost([]packing.Use{{Device: j}})
				if tight.Lost > loose.Lost {
					t.Fatalf("%s, seed %d: %s costs %+v, and the same of a GPU with more left %+v", model, seed, m.Devices[j].Name, tight, loose)
				}
			}
		}
	}
}

func sameNeeds(m *packing.Model, i, j int) bool {
	return slices.EqualFunc(m.Devices[i].Needs, m.Devices[j].Needs, func(a, b packing.Need) bool {
		return m.Counters[a.Counter].Name == m.Counters[b.Counter].Name && a.Amount == b.Amount
	})
}

func TestCost_Choices(t *testing.T) {
	tests := map[string]struct {
		first, second map[string]int // what the nodes have
		shape         string
		count         int
		pack, spread  int // which is better, -1 the first
	}{
		"partition to the touched GPU": {map[string]int{"1g.10gb": 1}, nil, "1g.10gb", 1, -1, 1},
		"the tightest GPU":             {map[string]int{"1g.10gb": 6}, map[string]int{"4g.40gb": 1}, "1g.10gb", 1, -1, 1},
		"share to the shared GPU":      {map[string]int{"mps": 1}, nil, "mps", 1, -1, 1},
		"a second shared GPU":          {map[string]int{"mps": 10}, map[string]int{"mps": 11}, "mps", 1, 1, -1},
		"whole GPU to the used node":   {map[string]int{"gpu": 1}, nil, "gpu", 1, -1, 1},
		"the smallest group":           {map[string]int{"gpu": 4}, map[string]int{"gpu": 2}, "gpu", 4, -1, 1},
		"one NUMA node":                {map[string]int{"gpu": 4}, map[string]int{"gpu": 6}, "gpu", 2, 1, -1},
		"nothing to choose":            {nil, nil, "2g.20gb", 1, 0, 0},
	}
	for name, tt := range tests {
		cost := func(allocated map[string]int) packing.Cost {
			s := emptyState(t, "hgx-h100")
			for shape, n := range allocated {
				for range n {
					take(t, s, shape, 1)
				}
			}
			uses, ok, err := s.Fit(request(s, tt.shape, tt.count))
			if !ok || err != nil {
				t.Fatalf("%s: %s does not fit: %v", name, tt.shape, err)
			}
			return s.Cost(uses)
		}
		first, second := cost(tt.first), cost(tt.second)
		for strategy, want := range map[packing.Strategy]int{packing.Pack: tt.pack, packing.Spread: tt.spread} {
			if got := sign(strategy.Compare(first, second)); got != want || sign(strategy.Compare(second, first)) != -want {
				t.Errorf("%s, %s: %d, want %d; costs %+v and %+v", name, strategy, got, want, first, second)
			}
		}
	}
}

func sign(n int) int { return min(1, max(-1, n)) }

func TestParseStrategy(t *testing.T) {
	for _, s := range packing.Strategies() {
		if got, err := packing.ParseStrategy(string(s)); err != nil || got != s {
			t.Errorf("%s: got %s, %v", s, got, err)
		}
	}
	if got, err := packing.ParseStrategy("tight"); err == nil {
		t.Errorf("an unknown strategy is %s", got)
	}
}

func TestFragmentation(t *testing.T) {
	tests := []struct {
		allocated map[string]int
		want      float64
	}{
		{nil, 0},
		{map[string]int{"gpu": 3}, 0},
		{map[string]int{"gpu": 8}, 0},
		{map[string]int{"1g.10gb": 7}, 0},
		{map[string]int{"1g.10gb": 56}, 0},
		{map[string]int{"1g.10gb": 1}, 6.0 / 55},
		{map[string]int{"gpu": 7, "1g.10gb": 1}, 1},
		{map[string]int{"timeslice": 4}, 0},
		{map[string]int{"timeslice": 1}, 5.25 / 54.25},
	}
	for _, tt := range tests {
		s := emptyState(t, "hgx-h100")
		for shape, n := range tt.allocated {
			for range n {
				take(t, s, shape, 1)
			}
		}
		if got := packing.Fragmentation(s); got < tt.want-0.001 || got > tt.want+0.001 {
			t.Errorf("%v: %f, want %f", tt.allocated, got, tt.want)
		}
	}
	broken, empty := emptyState(t, "hgx-h100"), emptyState(t, "hgx-h100")
	take(t, broken, "1g.10gb", 1)
	if got, one := packing.Fragmentation(broken, empty), packing.Fragmentation(broken); got >= one || got <= 0 {
		t.Errorf("two nodes, one of them empty: %f; the other alone: %f", got, one)
	}
}

// TestFragmentation_Range: it is a share, whatever is allocated.
func TestFragmentation_Range(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		for seed := range uint64(10) {
			s := emptyState(t, model)
			fill(rand.New(rand.NewPCG(seed, 3)), s, 40)
			if got := packing.Fragmentation(s); got < 0 || got > 1 {
				t.Errorf("%s, seed %d: %f", model, seed, got)
			}
		}
	}
}

func TestFit_TooManyCombinations(t *testing.T) {
	s := emptyState(t, "hgx-h100")
	if _, ok, err := s.Fit(request(s, "2g.20gb", 25)); ok || err == nil {
		t.Errorf("25 partitions of which 24 fit: %t, %v, want the search given up", ok, err)
	}
	if !s.Equal(packing.NewState(s.Model(), packing.NewBits(len(s.Model().Devices)))) {
		t.Error("a search that was given up changed the state")
	}
}

// TestState_Overdrawn: a pool whose counters are below zero gives nothing that needs counters, as the allocator has it.
func TestState_Overdrawn(t *testing.T) {
	s := emptyState(t, "hgx-h100")
	uses := take(t, s, "gpu", 1)
	s.Allocate(packing.Use{Device: uses[0].Device + 1}) // its partitions are not, but another GPU is
	if _, ok, _ := s.Fit(request(s, "1g.10gb", 1)); !ok {
		t.Fatal("two whole GPUs of eight leave no partition")
	}
	var partition int
	for i, d := range s.Model().Devices {
		if d.Shape == "1g.10gb" && d.GPU == s.Model().Devices[uses[0].Device].GPU {
			partition = i
		}
	}
	s.Allocate(packing.Use{Device: partition})
	if _, ok, _ := s.Fit(request(s, "1g.10gb", 1)); ok {
		t.Error("a partition fits though a counter is overdrawn")
	}
	s.Release(packing.Use{Device: partition})
	if _, ok, _ := s.Fit(request(s, "1g.10gb", 1)); !ok {
		t.Error("no partition fits once the counter is not overdrawn")
	}
}

// TestState_OverdrawnValues: what a GPU is worth is right again after another of its pool was overdrawn, though it changed
// meanwhile.
func TestState_OverdrawnValues(t *testing.T) {
	empty := emptyState(t, "hgx-h100")
	devices := map[int]int{} // by GPU, the first partition
	for i, d := range empty.Model().Devices {
		if _, ok := devices[d.GPU]; d.Shape == "1g.10gb" && !ok {
			devices[d.GPU] = i
		}
	}
	whole := take(t, empty.Clone(), "gpu", 8)
	for _, release := range [][]int{{1, 2}, {2, 1}} {
		s, want := empty.Clone(), empty.Clone()
		gpu := s.Model().Devices[whole[0].Device].GPU
		other := packing.Use{Device: devices[(gpu+3)%8]}
		over := []packing.Use{{Device: whole[0].Device}, {Device: devices[gpu]}}
		s.Allocate(over...)
		s.Allocate(other)
		want.Allocate(other)
		s.Release(over[release[0]-1])
		s.Release(over[release[1]-1])
		if !s.Equal(want) {
			t.Errorf("release %v: the state is not that of what is allocated", release)
		}
		next := []packing.Use{{Device: devices[(gpu+3)%8] + 1}}
		if got := s.Cost(next); got != want.Cost(next) || got.Lost < 0 {
			t.Errorf("release %v: cost %+v, want %+v", release, got, want.Cost(next))
		}
		before := s.Clone()
		if s.Cost(over); !s.Equal(before) {
			t.Errorf("release %v: Cost changes the state", release)
		}
	}
}
