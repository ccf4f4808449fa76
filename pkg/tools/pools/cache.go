// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// Bounds of what is remembered; what is beyond is evaluated again.
const (
	maxExpressions = 500
	maxDemands     = 100
	maxModels      = 100
)

// Cache shares what nodes have in common. It is safe for concurrent use; the Nodes that it returns are used by one goroutine
// at a time.
type Cache struct {
	mutex     sync.Mutex
	models    []*packing.Model
	cel       *cel.Cache
	selectors map[string]*selector
	answers   answers
}

// NewCache creates an empty cache.
func NewCache() *Cache {
	return &Cache{
		cel:       cel.NewCache(maxExpressions, cel.Features{EnableConsumableCapacity: true}),
		selectors: map[string]*selector{}, answers: answers{},
	}
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

// Requests are what a demand asks of a node. The error is that of a selector, which the allocator finds too.
func (c *Cache) Requests(ctx context.Context, n *Node, d Demand) ([]packing.Request, error) {
	if known, ok := n.known[d.Key]; ok {
		return known, nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	requests := make([]packing.Request, 0, len(d.requests))
	for i := range d.requests {
		r, err := c.request(ctx, n, &d.requests[i])
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

func (c *Cache) request(ctx context.Context, n *Node, r *request) (packing.Request, error) {
	found := packing.Request{Count: r.Count, Match: packing.NewBits(len(n.objects))}
	all := make([]*selector, 0, len(r.Selectors))
	for _, expression := range r.Selectors {
		s, err := c.selector(expression)
		if err != nil {
			return packing.Request{}, err
		}
		all = append(all, s)
	}
	for i, object := range n.objects {
		if ok, err := c.matchAll(ctx, all, n.Driver, object); err != nil {
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
		if len(n.taints[i]) > 0 && tolerated(n.taints[i], r.Tolerations) {
			if found.Tolerated == nil {
				found.Tolerated = packing.NewBits(len(n.objects))
			}
			found.Tolerated.Set(i)
		}
	}
	return found, nil
}

// matchAll evaluates selectors in order, as the allocator does: one that fails hides the errors of those after it.
func (c *Cache) matchAll(ctx context.Context, all []*selector, driver string, object *resourceapi.Device) (bool, error) {
	for _, s := range all {
		if ok, err := s.matches(ctx, c.answers, driver, object); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// tolerated reports whether every taint is.
func tolerated(taints []resourceapi.DeviceTaint, tolerations []resourceapi.DeviceToleration) bool {
	for _, t := range taints {
		if !slices.ContainsFunc(tolerations, func(by resourceapi.DeviceToleration) bool { return resourceclaim.ToleratesTaint(by, t) }) {
			return false
		}
	}
	return true
}
