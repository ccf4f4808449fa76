// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

var features = resourcepool.Features()

// site is a node as the allocator sees it.
type site struct {
	node   *corev1.Node
	slices []*slice
	// rest are the slices of its pools that the node does not reach.
	rest  []*resourceapi.ResourceSlice
	pools []*pool
	// signature is equal for nodes on which the allocator finds the same.
	signature string
}

// pool is a pool of devices, as far as a node reaches it.
type pool struct {
	*resourcepool.Pool
	slices []*slice
	// left is what allocated devices leave of each counter, by set; takers are their claims.
	left   map[string]map[string]int64
	takers map[string]map[string][]Use
}

// site collects what a node reaches.
func (c *Cluster) site(node *corev1.Node) (*site, error) {
	s := &site{node: node, slices: slices.Clone(c.onNode[node.Name])}
	for _, shared := range c.shared {
		reached, err := reaches(node, shared)
		if err != nil {
			return nil, err
		}
		if reached {
			s.slices = append(s.slices, shared)
		}
	}
	slices.SortStableFunc(s.slices, func(a, b *slice) int {
		return cmp.Or(strings.Compare(a.Spec.Driver, b.Spec.Driver), strings.Compare(a.Spec.Pool.Name, b.Spec.Pool.Name),
			strings.Compare(a.Name, b.Name))
	})
	known, reached := map[*resourceapi.ResourceSlice]*slice{}, make([]*resourceapi.ResourceSlice, 0, len(s.slices))
	for _, sl := range s.slices {
		known[sl.ResourceSlice] = sl
		reached = append(reached, sl.ResourceSlice)
	}
	ids := map[resourcepool.ID]bool{}
	for _, sl := range s.slices {
		id := resourcepool.ID{Driver: sl.Spec.Driver, Pool: sl.Spec.Pool.Name}
		if ids[id] {
			continue
		}
		ids[id] = true
		for _, other := range c.inPool[id] {
			if known[other.ResourceSlice] == nil {
				s.rest = append(s.rest, other.ResourceSlice)
			}
		}
	}
	for _, found := range resourcepool.Gather(reached, s.rest) {
		p := &pool{Pool: found}
		for _, sl := range found.Slices {
			p.slices = append(p.slices, known[sl])
		}
		if found.IsUsable() {
			p.count(c.uses[found.ID])
		}
		s.pools = append(s.pools, p)
	}
	s.sign(c)
	return s, nil
}

// reaches reports whether a node reaches a device of a slice that is not of one node.
func reaches(node *corev1.Node, s *slice) (bool, error) {
	if per := s.Spec.PerDeviceNodeSelection; per != nil && *per {
		for i := range s.Spec.Devices {
			if reached, err := reachesDevice(node, &s.Spec.Devices[i]); reached || err != nil {
				return reached, err
			}
		}
		return len(s.Spec.SharedCounters) > 0, nil
	}
	all := s.Spec.AllNodes != nil && *s.Spec.AllNodes
	return structured.NodeMatches(features, node, "", all, s.Spec.NodeSelector)
}

func reachesDevice(node *corev1.Node, d *resourceapi.Device) (bool, error) {
	name := ""
	if d.NodeName != nil {
		name = *d.NodeName
	}
	return structured.NodeMatches(features, node, name, d.AllNodes != nil && *d.AllNodes, d.NodeSelector)
}

// count subtracts what allocated devices consume of the counters.
func (p *pool) count(uses map[string]*use) {
	p.left, p.takers = map[string]map[string]int64{}, map[string]map[string][]Use{}
	for _, set := range p.CounterSets() {
		left := map[string]int64{}
		for name, c := range set.Counters {
			left[name] = c.Value.Value()
		}
		p.left[set.Name], p.takers[set.Name] = left, map[string][]Use{}
	}
	for _, s := range p.slices {
		for i := range s.Spec.Devices {
			u := uses[s.Spec.Devices[i].Name]
			if u == nil {
				continue
			}
			for _, c := range s.Spec.Devices[i].ConsumesCounters {
				for name, amount := range c.Counters {
					if p.left[c.CounterSet] != nil {
						p.left[c.CounterSet][name] -= amount.Value.Value()
						p.takers[c.CounterSet][name] = append(p.takers[c.CounterSet][name], u.claims...)
					}
				}
			}
		}
	}
}

// sign sets the signature.
func (s *site) sign(c *Cluster) {
	var b strings.Builder
	for _, p := range s.pools {
		fmt.Fprintf(&b, "|%s %d/%d %s", p.Driver, p.Have(), p.Want, p.Invalid)
		for _, sl := range p.slices {
			fmt.Fprintf(&b, ",%d", sl.content.id)
			if per := sl.Spec.PerDeviceNodeSelection; per != nil && *per {
				b.WriteString("@" + s.node.Name)
			}
		}
		uses := c.uses[p.ID]
		devices := make([]string, 0, len(uses))
		for name := range uses {
			devices = append(devices, name)
		}
		slices.Sort(devices)
		for _, name := range devices {
			u := uses[name]
			fmt.Fprintf(&b, ";%s %t %d", name, u.exclusive, len(u.shares))
			for _, capacity := range sortedNames(u.consumed) {
				q := u.consumed[capacity]
				fmt.Fprintf(&b, " %s=%s", capacity, &q)
			}
		}
	}
	s.signature = b.String()
}

// state is what is allocated of the pools, in the words of the allocator.
func (c *Cluster) state(s *site) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, p := range s.pools {
		for name, u := range c.uses[p.ID] {
			id := structured.MakeDeviceID(p.Driver, p.Pool.Pool, name)
			if u.exclusive {
				state.AllocatedDevices.Insert(id)
			}
			for _, r := range u.shares {
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		}
	}
	return state
}
