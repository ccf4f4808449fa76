// SPDX-License-Identifier: Apache-2.0

package packing_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/packing"
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
