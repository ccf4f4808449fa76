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
	selectors *resourcepool.Selectors
}

// NewCache creates an empty cache.
func NewCache() *Cache { return &Cache{selectors: resourcepool.NewSelectors()} }

// Attributes are those that a Node or one of some selectors looks at.
func (c *Cache) Attributes(selectors []resourceapi.DeviceSelector) *resourcepool.Attributes {
	a := resourcepool.NewAttributes("profile", "type", "parentUUID", "nvlinkGroup",
		resourcepool.Identifier(numaNode), resourcepool.Identifier(pciBusID))
	a.AddSelectors(c.selectors, selectors)
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

// Requests translates a demand for a node. The error is that of a selector, which the allocator finds too.
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
	all, err := c.selectors.Compile(r.Selectors...)
	if err != nil {
		return packing.Request{}, err
	}
	for i, object := range n.objects {
		if ok, err := resourcepool.MatchAll(ctx, all, n.Driver, object); err != nil {
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
