// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// TestStrategy_Order: what is compared first outweighs all that comes after it. Of each pair the first is the better in one
// field alone, and the worse in those after it.
func TestStrategy_Order(t *testing.T) {
	type field struct {
		name string
		set  func(*packing.Cost, int)
	}
	lost := field{"Lost", func(c *packing.Cost, n int) { c.Lost = n }}
	spans := field{"Spans", func(c *packing.Cost, n int) { c.Spans = n }}
	broken := field{"Broken", func(c *packing.Cost, n int) { c.Broken = n }}
	left := field{"Left", func(c *packing.Cost, n int) { c.Left = n }}
	joined := field{"Joined", func(c *packing.Cost, n int) { c.Joined = n }}
	load := field{"Load", func(c *packing.Cost, n int) { c.Load = n }}
	replicas := field{"Replicas", func(c *packing.Cost, n int) { c.Replicas = n }}
	for strategy, tt := range map[packing.Strategy]struct{ order, ignored []field }{
		packing.Pack:   {[]field{lost, spans, broken, left}, []field{joined, load, replicas}},
		packing.Spread: {[]field{replicas, joined, load, lost, spans, broken, left}, nil},
	} {
		for i, first := range tt.order {
			better, worse := packing.Cost{}, packing.Cost{}
			first.set(&worse, 1)
			for _, f := range append(tt.order[i+1:len(tt.order):len(tt.order)], tt.ignored...) {
				f.set(&better, 2)
			}
			if diff := cmp.Diff([]int{-1, 1}, []int{sign(strategy.Compare(better, worse)), sign(strategy.Compare(worse, better))}); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", strategy, first.name, diff)
			}
		}
		for _, f := range tt.ignored {
			c := packing.Cost{}
			f.set(&c, 1)
			if got := strategy.Compare(c, packing.Cost{}); got != 0 {
				t.Errorf("%s compares %s: %d", strategy, f.name, got)
			}
		}
	}
}

// TestCost_Blocks: two nodes of eight GPUs, 0 to 3 of one NUMA node and 4 to 7 of the other, whose costs differ in one field.
func TestCost_Blocks(t *testing.T) {
	tests := map[string]struct {
		first, second []int // whole GPUs that the nodes have allocated
		count         int
		clear         func(*packing.Cost) // the field that differs
	}{
		"a NUMA node stays whole": {[]int{0, 4}, []int{6, 7}, 1, func(c *packing.Cost) { c.Broken = 0 }},
		"both of one NUMA node":   {[]int{2, 3, 4, 5, 6, 7}, []int{1, 2, 3, 5, 6, 7}, 2, func(c *packing.Cost) { c.Spans = 0 }},
	}
	for name, tt := range tests {
		cost := func(allocated []int) packing.Cost {
			s := emptyState(t, "hgx-h100")
			whole := take(t, s, "gpu", 8) // in the order of the GPUs
			s.Release(whole...)
			for _, g := range allocated {
				s.Allocate(whole[g])
			}
			uses, ok, err := s.Fit(request(s, "gpu", tt.count))
			if !ok || err != nil {
				t.Fatalf("%s: %d GPUs do not fit: %v", name, tt.count, err)
			}
			return s.Cost(uses)
		}
		first, second := cost(tt.first), cost(tt.second)
		for _, strategy := range packing.Strategies() {
			if got := sign(strategy.Compare(first, second)); got != -1 {
				t.Errorf("%s, %s: %d, want the first; costs %+v and %+v", name, strategy, got, first, second)
			}
		}
		tt.clear(&first)
		tt.clear(&second)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: something else differs (-first +second):\n%s", name, diff)
		}
	}
}
