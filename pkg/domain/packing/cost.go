// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"cmp"
	"fmt"
)

// Strategy is which of several nodes is the better choice.
type Strategy string

// The strategies.
const (
	// Pack takes what later claims miss least.
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
	// Lost is the summed size of the unused devices that stop fitting, those allocated included. A share of a GPU that is
	// shared already costs nothing.
	Lost int
	// Spans is how many NVLink groups and NUMA nodes the devices are of, one of each kind for one GPU.
	Spans int
	// Broken is how many NVLink groups and NUMA nodes nothing was allocated of before.
	Broken int
	// Left is how many untouched GPUs the node has afterwards.
	Left int
	// Joined is how many of the devices are on GPUs of which something was allocated before.
	Joined int
	// Load is what of the node is allocated before, in thousandths of its placement units.
	Load int
	// Replicas are pods of the same controller on the node. No state of devices has them: who knows of pods fills them in.
	Replicas int
}

// Compare is negative if a is the better choice. Where it is zero, neither is: other plugins of the scheduler choose.
func (s Strategy) Compare(a, b Cost) int {
	pack := cmp.Or(a.Lost-b.Lost, a.Spans-b.Spans, a.Broken-b.Broken, a.Left-b.Left)
	if s == Spread {
		return cmp.Or(a.Replicas-b.Replicas, a.Joined-b.Joined, a.Load-b.Load, pack)
	}
	return pack
}

// Cost is what allocating devices takes from later claims. The state stays as it is.
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
			if !blocks[b] && s.whole(b) {
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

// whole reports whether nothing of a block is allocated.
func (s *State) whole(block int) bool {
	for _, g := range s.model.byBlock[block] {
		if s.Touched(g) {
			return false
		}
	}
	return true
}
