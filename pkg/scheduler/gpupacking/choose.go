// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// candidate is a node where a demand fits.
type candidate struct {
	node string
	cost packing.Cost
	// tie is the order among equal nodes. It is another one for each pod, so that not all go where names come first.
	tie uint64
}

// MarshalText is what a log shows of it, in lists too (docs/scheduler.md explains the numbers).
func (c candidate) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%s%+v", c.node, c.cost), nil
}

// choice is how a demand fits some nodes.
type choice struct {
	// best are the nodes where it fits, the best first.
	best []candidate
	// passed is why the measure has no say, or empty.
	passed string
	// full: nodes have the requested devices, but none has room.
	full bool
}

// Reasons why the measure has no say; values of a metric's label.
const (
	passedUnpredictable = "unpredictable" // all devices, admin access, lists of attributes in constraints
	passedDriver        = "driver"        // devices of a driver that is not packed, or of several
	passedSearch        = "search"        // too many combinations
	passedSelector      = "selector"      // a selector fails
	passedNone          = "none"          // no node has such devices
	passedPlugin        = "plugin"        // extended resources of a device plugin
	passedAllocated     = "allocated"     // claims that have devices already
	passedGroup         = "group"         // a pod of a group that is scheduled together
)

// query is what is looked for on some nodes.
type query struct {
	holder
	demand   pools.Demand
	strategy packing.Strategy
	most     int            // nodes to find
	drivers  []string       // that are packed even if they publish no counters
	replicas map[string]int // by node, see eligible
	class    string         // of the first request, for metrics
}

// choose finds the best of some nodes. Nodes on which the search takes too long do not count if others are found.
func (c *cluster) choose(ctx context.Context, q query, names []string) choice {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found choice
	hard := false
	better := func(a, b candidate) int {
		return cmp.Or(q.strategy.Compare(a.cost, b.cost), cmp.Compare(a.tie, b.tie), cmp.Compare(a.node, b.node))
	}
	for _, name := range names {
		p, passed := c.planOn(ctx, name, q)
		switch {
		case passed == passedSearch:
			hard = true
			continue
		case passed != "":
			return choice{passed: passed}
		case !p.complete:
			continue
		case !p.fits:
			found.full = true
			continue
		}
		n := candidate{node: name, cost: p.cost, tie: c.tie(q.uid, name)}
		n.cost.Replicas = q.replicas[name]
		if q.most >= len(names) { // all of them
			found.best = append(found.best, n)
			continue
		}
		if len(found.best) == q.most && better(n, found.best[q.most-1]) >= 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(found.best, n, better)
		found.best = slices.Insert(found.best, at, n)
		found.best = found.best[:min(q.most, len(found.best))]
	}
	if q.most >= len(names) {
		slices.SortFunc(found.best, better)
	}
	switch {
	case len(found.best) > 0:
	case hard:
		found.passed = passedSearch
	case !found.full:
		found.passed = passedNone
	}
	return found
}

// tieOf is a number for a pod and a node.
func tieOf(pod types.UID, node string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, string(pod))
	_, _ = io.WriteString(h, node)
	return h.Sum64()
}

// nodesOf are the nodes that pools are of; not ok where one is of no node that is known.
func (c *cluster) nodesOf(results []resourceapi.DeviceRequestAllocationResult) (names []string, ok bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for i := range results {
		owners := c.owners[poolKey{results[i].Driver, results[i].Pool}]
		if len(owners) != 1 {
			return nil, false
		}
		if !slices.Contains(names, owners[0].of) {
			names = append(names, owners[0].of)
		}
	}
	return names, true
}

// prediction is what would become of a demand on a node.
type prediction struct {
	// complete: for each request there are devices that it selects.
	complete, fits bool
	cost           packing.Cost
	// parts are the views that have such devices, short those without room for their part.
	parts, short []*view
}

// planOn predicts a demand on a node, or says why the measure has no say. Devices of one driver decide. Others that are requested with
// them, such as NICs, must have room there, too. What constraints say of both is left to the allocator.
func (c *cluster) planOn(ctx context.Context, name string, q query) (found prediction, passed string) {
	var requests, local uint64
	packed := false
	for _, v := range c.views[name] {
		p := c.plan(ctx, v, q)
		if p.err != nil {
			return prediction{}, passedBy(p.err)
		}
		if p.requests == 0 {
			continue
		}
		own := v.node.Counted || slices.Contains(q.drivers, v.node.Driver)
		if requests&p.requests != 0 || own && (packed || c.elsewhere[v.driver] > 0) {
			return prediction{}, passedDriver
		}
		requests, local, found.parts = requests|p.requests, local|p.local, append(found.parts, v)
		if own {
			packed, found.cost = true, p.cost
		}
		if !p.fits && c.elsewhere[v.driver] == 0 {
			found.short = append(found.short, v)
		}
	}
	found.complete = requests == q.demand.All()
	found.fits = found.complete && len(found.short) == 0
	switch elsewhere := len(c.elsewhere) > 0; {
	case requests == 0:
		return prediction{}, ""
	case found.complete && !packed:
		return prediction{}, passedDriver
	case !found.complete && elsewhere, !found.fits && elsewhere && local != q.demand.All():
		return prediction{}, passedDriver // the rest may come from devices that are not of a node
	}
	return found, ""
}

// passedBy is why the measure has no say where it fails.
func passedBy(err error) string {
	switch {
	case errors.Is(err, packing.ErrSearch):
		return passedSearch
	case errors.Is(err, pools.ErrUnpredictable):
		return passedUnpredictable
	}
	return passedSelector
}
