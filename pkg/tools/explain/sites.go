// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// site is a node as the allocator sees it.
type site struct {
	node   *corev1.Node
	slices []*resourceapi.ResourceSlice
	// rest are the slices of its pools that the node does not reach.
	rest  []*resourceapi.ResourceSlice
	pools []*pool
	// signature is equal for nodes on which the allocator finds the same.
	signature string
	// barred is set where no claim of the question could be, whatever is free.
	barred bool
	// plugin is set where a device plugin serves what the pod asks for: how much of it there is, is not known here.
	plugin bool
}

// pool is a pool of devices, as far as a node reaches it.
type pool struct {
	*resourcepool.Pool
	// uses are the allocations, by device.
	uses map[string]*use
	// left is what allocated devices leave of each counter; takers are their claims.
	left   resourcepool.Stock
	takers map[resourcepool.CounterID][]Use
	// overdrawn are the counter sets of which more is allocated than there is, overdraw the claims that have it.
	overdrawn []string
	overdraw  []Use
}

// site collects the slices that a node reaches.
func (c *Cluster) site(node *corev1.Node) (*site, error) {
	s := &site{node: node, slices: slices.Clone(c.slices.Of(node.Name))}
	for _, shared := range c.slices.Of("") {
		reached, err := c.reaches(node, shared)
		if err != nil {
			return nil, err
		}
		if reached {
			s.slices = append(s.slices, shared)
		}
	}
	slices.SortStableFunc(s.slices, func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(strings.Compare(a.Spec.Driver, b.Spec.Driver), strings.Compare(a.Spec.Pool.Name, b.Spec.Pool.Name),
			strings.Compare(a.Name, b.Name))
	})
	ids := map[resourcepool.ID]bool{}
	for _, sl := range s.slices {
		id := resourcepool.ID{Driver: sl.Spec.Driver, Pool: sl.Spec.Pool.Name}
		if ids[id] {
			continue
		}
		ids[id] = true
		for _, other := range c.inPool[id] {
			if !slices.Contains(s.slices, other) {
				s.rest = append(s.rest, other)
			}
		}
	}
	for _, found := range resourcepool.Gather(s.slices, s.rest) {
		s.pools = append(s.pools, newPool(found, c.uses[found.ID]))
	}
	s.sign(c)
	return s, nil
}

// emptied is the site as if only some claims had devices.
func (c *Cluster) emptied(s *site, uses map[resourcepool.ID]map[string]*use) *site {
	e := &site{node: s.node, slices: s.slices, rest: s.rest, barred: s.barred}
	for _, p := range s.pools {
		e.pools = append(e.pools, newPool(p.Pool, uses[p.ID]))
	}
	e.sign(c)
	return e
}

// reaches reports whether a node reaches a device of a slice that is not of one node.
func (c *Cluster) reaches(node *corev1.Node, s *resourceapi.ResourceSlice) (bool, error) {
	if per := s.Spec.PerDeviceNodeSelection; per != nil && *per {
		for i := range s.Spec.Devices {
			if reached, err := c.reachesDevice(node, &s.Spec.Devices[i]); reached || err != nil {
				return reached, err
			}
		}
		return len(s.Spec.SharedCounters) > 0, nil
	}
	all := s.Spec.AllNodes != nil && *s.Spec.AllNodes
	return structured.NodeMatches(c.Features, node, "", all, s.Spec.NodeSelector)
}

func (c *Cluster) reachesDevice(node *corev1.Node, d *resourceapi.Device) (bool, error) {
	name := ""
	if d.NodeName != nil {
		name = *d.NodeName
	}
	return structured.NodeMatches(c.Features, node, name, d.AllNodes != nil && *d.AllNodes, d.NodeSelector)
}

// publishes reports whether the node has devices of a driver.
func (s *site) publishes(driver string) bool {
	return slices.ContainsFunc(s.pools, func(p *pool) bool { return p.Driver == driver })
}

// unusable is why the allocator uses no device of pools.
func (s *site) unusable() (found causes) {
	for _, p := range s.pools {
		switch {
		case p.IsIncomplete():
			found.add(Cause{Kind: Incomplete, name: p.Pool.Pool, most: p.Have(), want: p.Want})
		case p.Invalid != "":
			found.add(Cause{Kind: InvalidPool, name: p.Invalid})
		}
	}
	return found
}

// newPool subtracts what allocated devices consume of the counters.
func newPool(of *resourcepool.Pool, uses map[string]*use) *pool {
	p := &pool{Pool: of, uses: uses}
	if !of.IsUsable() {
		return p
	}
	p.left, p.takers = p.Stock(), map[resourcepool.CounterID][]Use{}
	for _, d := range p.Devices() {
		if u := uses[d.Name]; u != nil {
			needs := resourcepool.Needs(p.Pool.Pool, d)
			p.left.Take(needs)
			for id := range needs {
				p.takers[id] = append(p.takers[id], u.claims...)
			}
		}
	}
	for id, left := range p.left {
		if left < 0 {
			p.overdrawn, p.overdraw = append(p.overdrawn, id.Set), append(p.overdraw, p.takers[id]...)
		}
	}
	slices.Sort(p.overdrawn)
	p.overdrawn = slices.Compact(p.overdrawn)
	return p
}

// sign sets the signature.
func (s *site) sign(c *Cluster) {
	var b strings.Builder
	for _, p := range s.pools {
		fmt.Fprintf(&b, "|%s %d/%d %s", p.Driver, p.Have(), p.Want, p.Invalid)
		for _, sl := range p.Slices {
			fmt.Fprintf(&b, ",%d", c.slices.Content(sl))
			if per := sl.Spec.PerDeviceNodeSelection; per != nil && *per {
				b.WriteString("@" + s.node.Name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.uses)) {
			u := p.uses[name]
			fmt.Fprintf(&b, ";%s %t %d", name, u.exclusive, len(u.results))
			for _, capacity := range slices.Sorted(maps.Keys(u.consumed)) {
				q := u.consumed[capacity]
				fmt.Fprintf(&b, " %s=%s", capacity, &q)
			}
		}
	}
	s.signature = b.String()
}

// state lists the allocations from the pools in the allocator's terms.
func (s *site) state() structured.AllocatedState {
	state := allocator.NewAllocated()
	for _, p := range s.pools {
		for _, u := range p.uses {
			state.Add(u.results...)
		}
	}
	return state.AllocatedState
}
