// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/selector"
)

// Bounds of the cache; beyond them, requests and models are made again.
const (
	maxDemands = 100
	maxModels  = 100
)

// Cache shares the common parts of nodes. It is safe for concurrent use; the Nodes that it returns are used by one goroutine
// at a time.
type Cache struct {
	mutex     sync.Mutex
	models    []*packing.Model
	selectors *selector.Cache
}

// NewCache creates an empty cache.
func NewCache() *Cache { return &Cache{selectors: selector.NewCache()} }

// Attributes are those that a Node or one of some claims looks at.
func (c *Cache) Attributes(class Classes, claims ...*resourceapi.ResourceClaim) *resourcepool.Attributes {
	a := resourcepool.NewAttributes("profile", "type", "parentUUID", "nvlinkGroup", sharePlacement,
		resourcepool.Identifier(numaNode), resourcepool.Identifier(pciBusID))
	add := func(className string, selectors []resourceapi.DeviceSelector) {
		c.selectors.AddTo(a, selectors)
		if found, err := class(className); err == nil {
			c.selectors.AddTo(a, found.Spec.Selectors)
		}
	}
	for _, claim := range claims {
		for _, r := range claim.Spec.Devices.Requests {
			if r.Exactly != nil {
				add(r.Exactly.DeviceClassName, r.Exactly.Selectors)
			}
			for i := range r.FirstAvailable {
				add(r.FirstAvailable[i].DeviceClassName, r.FirstAvailable[i].Selectors)
			}
		}
		for _, constraint := range claim.Spec.Devices.Constraints {
			for _, name := range []*resourceapi.FullyQualifiedName{constraint.MatchAttribute, constraint.DistinctAttribute} {
				if name != nil {
					a.Add(resourcepool.Identifier(*name))
				}
			}
		}
	}
	return a
}

// share is the model itself, or an equal one that other nodes have.
func (c *Cache) share(m *packing.Model) *packing.Model {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, known := range c.models {
		if len(known.Devices) == len(m.Devices) && reflect.DeepEqual(known, m) {
			return known
		}
	}
	if len(c.models) >= maxModels {
		c.models = slices.Delete(c.models, 0, 1) // nodes go on with what they have
	}
	c.models = append(c.models, m)
	return m
}

// Requests translates a demand for a node: one request for each of the demand, in its order. The error is that of a selector, which
// the allocator finds too, or ErrUnpredictable.
func (c *Cache) Requests(ctx context.Context, n *Node, d Demand) ([]packing.Request, error) {
	if known, ok := n.known[d.Key]; ok {
		return known, nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	constraints := make([]*packing.Constraint, len(d.constraints))
	for i, of := range d.constraints {
		var err error
		if constraints[i], err = n.constraint(of); err != nil {
			return nil, err
		}
	}
	requests := make([]packing.Request, 0, len(d.requests))
	for i := range d.requests {
		r, err := c.requestOf(ctx, n, &d.requests[i], constraints)
		if err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
	if len(n.known) >= maxDemands {
		clear(n.known)
	}
	n.known[d.Key] = requests
	return requests, nil
}

// constraint is one with the values of the node's devices. Lists of values are compared by a feature that is off by default
// (DRAListTypeAttributes, alpha in 1.37).
func (n *Node) constraint(of constraint) (*packing.Constraint, error) {
	found := &packing.Constraint{Values: make([]int, len(n.objects)), Distinct: of.Distinct}
	known := map[string]int{}
	for i, object := range n.objects {
		text, ok := resourcepool.Value(n.Driver, object, of.Attribute)
		if !ok {
			continue
		}
		if text == "" {
			return nil, fmt.Errorf("compare attribute %s of device %s of node %s: %w", of.Attribute, object.Name, n.Name, ErrUnpredictable)
		}
		if known[text] == 0 {
			known[text] = len(known) + 1
		}
		found.Values[i] = known[text]
	}
	return found, nil
}

func (c *Cache) requestOf(ctx context.Context, n *Node, r *request, constraints []*packing.Constraint) (found packing.Request, err error) {
	if len(r.Alternatives) == 0 {
		found, err = c.request(ctx, n, r)
	}
	for _, i := range r.Constraints {
		found.Constraints = append(found.Constraints, constraints[i])
	}
	for i := range r.Alternatives {
		one, err := c.requestOf(ctx, n, &r.Alternatives[i], constraints)
		if err != nil {
			return packing.Request{}, err
		}
		found.Alternatives = append(found.Alternatives, one)
	}
	return found, err
}

func (c *Cache) request(ctx context.Context, n *Node, r *request) (packing.Request, error) {
	found := packing.Request{Count: r.Count, Match: packing.NewBits(len(n.objects))}
	all, err := c.selectors.Compile(r.Selectors...)
	if err != nil {
		return packing.Request{}, err
	}
	for i, object := range n.objects {
		if ok, err := selector.MatchAll(ctx, all, n.Driver, object); err != nil {
			return packing.Request{}, fmt.Errorf("select device %s of node %s: %w", object.Name, n.Name, err)
		} else if !ok {
			continue
		}
		amounts, ok := amountsOf(r.Amounts, object, &n.Model.Devices[i])
		if !ok {
			continue
		}
		found.Match.Set(i)
		if r.Amounts != nil && n.Model.Devices[i].Shared {
			if found.Amounts == nil {
				found.Amounts = make([][]int64, len(n.objects))
			}
			found.Amounts[i] = amounts
		}
		refuses := func(t resourceapi.DeviceTaint) bool { return resourcepool.Refuses(t, r.Tolerations) }
		if len(n.taints[i]) > 0 && !slices.ContainsFunc(n.taints[i], refuses) {
			if found.Tolerated == nil {
				found.Tolerated = packing.NewBits(len(n.objects))
			}
			found.Tolerated.Set(i)
		}
	}
	return found, nil
}
