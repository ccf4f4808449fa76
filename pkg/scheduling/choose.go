// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"slices"

	"github.com/cleave-dra/cleave/pkg/packing"
	"github.com/cleave-dra/cleave/pkg/pools"
)

// candidate is a node where a demand fits.
type candidate struct {
	node string
	cost packing.Cost
}

// choice is what is known of a demand on some nodes.
type choice struct {
	// best are the nodes where it fits, the best first.
	best []candidate
	// passed is why the measure has no say, or empty.
	passed string
	// full: nodes have what is asked for, and none has room.
	full bool
}

// Reasons why the measure has no say; values of a metric's label.
const (
	passedUnforeseen = "unforeseen" // alternatives, constraints, all devices, admin access
	passedDriver     = "driver"     // devices of a driver that is not packed, or of several
	passedSearch     = "search"     // too many combinations
	passedSelector   = "selector"   // a selector fails
	passedNone       = "none"       // no node has such devices
	passedPlugin     = "plugin"     // extended resources of a device plugin
	passedAllocated  = "allocated"  // claims that have devices already
	passedGroup      = "group"      // a pod of a group that is scheduled together
)

// choose finds the best of some nodes, at most so many.
func (c *cluster) choose(
	ctx context.Context, d pools.Demand, names []string, strategy packing.Strategy, most int, drivers []string,
) choice {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found choice
	better := func(a, b candidate) int { return cmp.Or(strategy.Compare(a.cost, b.cost), cmp.Compare(a.node, b.node)) }
	for _, name := range names {
		p, driver, passed := c.planOn(ctx, name, d, drivers)
		switch {
		case passed != "":
			return choice{passed: passed}
		case driver == "":
			continue
		case c.elsewhere[driver] > 0:
			return choice{passed: passedDriver}
		case !p.complete:
			if len(c.elsewhere) > 0 {
				return choice{passed: passedDriver} // the rest may come from devices that are not of a node
			}
			continue
		case !p.fits:
			found.full = true
			continue
		}
		n := candidate{name, p.cost}
		if len(found.best) == most && better(n, found.best[most-1]) >= 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(found.best, n, better)
		found.best = slices.Insert(found.best, at, n)
		found.best = found.best[:min(most, len(found.best))]
	}
	if len(found.best) == 0 && !found.full {
		found.passed = passedNone
	}
	return found
}

// planOn is what would become of a demand on a node, and the one driver whose devices it selects there; empty where there
// is none.
func (c *cluster) planOn(ctx context.Context, name string, d pools.Demand, drivers []string) (found plan, driver, passed string) {
	for _, v := range c.views[name] {
		p := c.plan(ctx, v, d)
		switch {
		case p.err != nil && p.complete:
			return plan{}, "", passedSearch
		case p.err != nil:
			return plan{}, "", passedSelector
		case !p.matches:
			continue
		case driver != "" || !v.node.Counted && !slices.Contains(drivers, v.node.Driver):
			return plan{}, "", passedDriver
		}
		found, driver = p, v.driver
	}
	return found, driver, ""
}
