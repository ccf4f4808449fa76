// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"fmt"
)

// Strategy decides which of several nodes is the better choice.
type Strategy string

// The strategies.
const (
	// Pack takes the devices that later claims will miss least.
	Pack Strategy = "pack"
	// Spread takes the node with the fewest replicas of the pod, then the emptiest GPU and node, for replicas that must not
	// share one.
	Spread Strategy = "spread"
)

// Strategies are all there are.
func Strategies() []Strategy { return []Strategy{Pack, Spread} }

// ParseStrategy is the strategy of a name.
func ParseStrategy(name string) (Strategy, error) {
	for _, s := range Strategies() {
		if name == string(s) {
			return s, nil
		}
	}
	return "", fmt.Errorf("unknown strategy %q: it is one of %v", name, Strategies())
}

// Cost of allocating devices on a node.
type Cost struct {
	// Rank is the number of preferred alternatives that were passed over. The state of devices lacks it: FitRanked returns it.
	Rank int
	// Lost is the summed size of the unused devices that stop fitting, including the allocated ones. A share of an already shared
	// GPU costs nothing.
	Lost int
	// Spans is the number of NVLink groups and NUMA nodes that the devices span, one of each kind for one GPU.
	Spans int
	// Broken is the number of those NVLink groups and NUMA nodes that had no allocations before.
	Broken int
	// Left is the number of untouched GPUs afterwards.
	Left int
	// Joined is the number of devices on GPUs that had allocations before.
	Joined int
	// Load is the part of the node allocated before, in thousandths of its placement units.
	Load int
	// Replicas are pods of the same controller on the node. The state of devices lacks them: the caller fills them in.
	Replicas int
}

// Compare is negative if a is the better choice. Where it is zero, neither is: other plugins of the scheduler choose.
func (s Strategy) Compare(a, b Cost) int {
	pack := cmp.Or(a.Lost-b.Lost, a.Spans-b.Spans, a.Broken-b.Broken, a.Left-b.Left)
	if s == Spread {
		return cmp.Or(a.Rank-b.Rank, a.Replicas-b.Replicas, a.Joined-b.Joined, a.Load-b.Load, pack)
	}
	return cmp.Or(a.Rank-b.Rank, pack)
}

// Cost is what an allocation of devices takes from later claims. The state does not change.
func (s *State) Cost(uses []Use) Cost {
	c := Cost{Lost: s.worth, Load: s.load()}
	touched := map[int]bool{} // GPUs
	blocks := map[int]bool{}
	for _, u := range uses {
		g := s.model.Devices[u.Device].GPU
		if s.Touched(g) || touched[g] {
			c.Joined++
		}
		touched[g] = true
		for _, b := range s.model.GPUs[g].Blocks {
			if !blocks[b] && whole(s, b) {
				c.Broken++
			}
			blocks[b] = true
		}
	}
	c.Spans = len(blocks)
	s.Allocate(uses...)
	c.Lost -= s.worth
	c.Left = s.Untouched()
	s.Release(uses...)
	return c
}

// whole reports whether a block has no allocations.
func whole(s *State, block int) bool {
	for _, g := range s.model.byBlock[block] {
		if s.Touched(g) {
			return false
		}
	}
	return true
}
