// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

const (
	// Default is the strategy of kube-scheduler's default configuration.
	Default = "default"
	// Preempt is pack, with pods of a lower priority evicted for devices.
	Preempt = "preempt"
)

// Strategies are those that can be simulated: the default scheduler's, and those of cleave-scheduler. Preempt is for workloads whose pods
// have priorities.
func Strategies() []string {
	names := []string{Default}
	for _, s := range packing.Strategies() {
		names = append(names, string(s))
	}
	return append(names, Preempt)
}

// Strategies are those that suit a workload: with priorities eviction in place of spread.
func (w *Workload) Strategies() []string {
	if w.queued() {
		return []string{Default, string(packing.Pack), Preempt}
	}
	return []string{Default, string(packing.Pack), string(packing.Spread)}
}

// chooser places pods on nodes by a strategy.
type chooser struct {
	*plan
	nodes    []*node
	strategy string
	random   *rand.Rand
}

// errGivenUp means that the time for a request ended before the allocator had found a place, or that there is none.
var errGivenUp = errors.New("the search for devices takes too long")

// place finds a place for a pod, nil where there is none. The allocator is asked about the chosen node alone, and about the
// next one only if it finds no place there, which the measure has ruled out.
func (c *chooser) place(ctx context.Context, request int, name string) (*placement, error) {
	order, err := c.order(request)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	for _, at := range order {
		placed, err := c.allocate(bounded, c.nodes, at, request, name)
		if errors.Is(err, allocator.ErrNoFit) {
			continue
		}
		if err != nil && ctx.Err() == nil && bounded.Err() != nil {
			c.nodes[at].answers[request].givenUp = true
			return nil, errGivenUp
		}
		return placed, err
	}
	if slices.ContainsFunc(c.nodes, func(n *node) bool { return n.answers[request].givenUp }) {
		return nil, errGivenUp
	}
	return nil, nil //nolint:nilnil // no place is no error
}

// order is in which order nodes are tried.
func (c *chooser) order(request int) ([]int, error) {
	if c.strategy == Default {
		return c.leastAllocated(request)
	}
	own := c.strategy
	if own == Preempt {
		own = string(packing.Pack)
	}
	strategy, err := packing.ParseStrategy(cmp.Or(string(c.requests[request].pods.Placement), own))
	if err != nil {
		return nil, fmt.Errorf("choose a node: %w", err)
	}
	return c.measured(request, strategy)
}

// measured are the nodes that fit, by the measure, as cleave-scheduler looks at them. Where there are none, it leaves those to
// the allocator that have too many combinations of devices.
func (c *chooser) measured(request int, strategy packing.Strategy) ([]int, error) {
	var order, unsure []int
	for i, n := range c.nodes {
		a, err := c.measure(n, request)
		switch {
		case err != nil:
			return nil, err
		case a.refused || a.givenUp:
		case a.fits:
			order = append(order, i)
		case a.unsure:
			unsure = append(unsure, i)
		}
	}
	if len(order) == 0 {
		return unsure, nil
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return strategy.Compare(c.nodes[a].answers[request].cost, c.nodes[b].answers[request].cost)
	})
	return order, nil
}

// leastAllocated are the nodes that fit, in the order in which the default scheduler prefers them. It looks for as many as
// percentageOfNodesToScore gives, from where it stopped the last time. Of these it takes the one with the most CPU and memory
// left (NodeResourcesFit, LeastAllocated), of equals any. Devices do not count (pkg/scheduler/schedule_one.go,
// findNodesThatPassFilters, numFeasibleNodesToFind and selectHost). Pods are taken to request CPU and memory in proportion to
// their part of the node's GPUs, and where the look begins is drawn at random.
func (c *chooser) leastAllocated(request int) ([]int, error) {
	begin := c.random.IntN(len(c.nodes))
	enough := feasibleNodes(len(c.nodes))
	var order []int
	for i := range c.nodes {
		if len(order) == enough {
			break
		}
		at := (begin + i) % len(c.nodes)
		a, err := c.predict(c.nodes[at], request)
		if err != nil {
			return nil, err
		}
		if (a.fits || a.unsure) && !a.refused && !a.givenUp {
			order = append(order, at)
		}
	}
	rank := make([]int, len(c.nodes))
	for i, at := range c.random.Perm(len(c.nodes)) {
		rank[at] = i
	}
	score := func(at int) int { return int(maxNodeScore * (1 - c.nodes[at].share)) }
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(score(b)-score(a), rank[a]-rank[b]) })
	return order, nil
}

// maxNodeScore is the highest score of a plugin (k8s.io/kube-scheduler/framework, MaxNodeScore).
const maxNodeScore = 100

// feasibleNodes is how many nodes that fit are enough for the default scheduler (pkg/scheduler/schedule_one.go,
// numFeasibleNodesToFind).
func feasibleNodes(nodes int) int {
	const enough, least = 100, 5
	if nodes < enough {
		return nodes
	}
	percent := max(50-nodes/125, least)
	return max(nodes*percent/100, enough)
}
