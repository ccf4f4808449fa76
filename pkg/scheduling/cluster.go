// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/packing"
	"github.com/cleave-dra/cleave/pkg/pools"
)

// cluster is what is published and allocated, kept up to date by events. Nodes whose slices changed are read again when they
// are next asked for; allocations change a node's state in place.
type cluster struct {
	mutex sync.Mutex
	cache *pools.Cache
	// views by node, ordered by driver.
	views map[string][]*view
	// elsewhere are the drivers of slices that are not of one node, with their number.
	elsewhere map[string]int
	rules     map[string]*resourceapi.DeviceTaintRule
	claims    map[types.UID]*claimState
	// owners are the views that a pool is of, users the claims that have devices of it.
	owners map[poolKey]*view
	users  map[poolKey]map[types.UID]bool
}

type poolKey struct{ driver, pool string }

// view is what a driver publishes for a node, and what of it is allocated.
type view struct {
	driver string
	slices map[string]*resourceapi.ResourceSlice // by name
	stale  bool
	node   *pools.Node // nil where no pool is complete
	state  *packing.State
	plans  map[string]plan // by the key of a demand; dropped when anything changes
}

// plan is what would become of a demand on a node.
type plan struct {
	// matches: the driver has devices that the demand selects. complete: it has some for each request.
	matches, complete bool
	fits              bool
	// err is why nothing can be foreseen.
	err  error
	cost packing.Cost
}

// maxPlans bound what is remembered of a node.
const maxPlans = 100

// claimState is a claim's devices: as stored at the API server, and as assumed until it is stored.
type claimState struct {
	stored, assumed []resourceapi.DeviceRequestAllocationResult
}

// current is what counts.
func (c *claimState) current() []resourceapi.DeviceRequestAllocationResult {
	if c.stored != nil {
		return c.stored
	}
	return c.assumed
}

func newCluster() *cluster {
	return &cluster{
		cache: pools.NewCache(), views: map[string][]*view{}, elsewhere: map[string]int{},
		rules: map[string]*resourceapi.DeviceTaintRule{}, claims: map[types.UID]*claimState{},
		owners: map[poolKey]*view{}, users: map[poolKey]map[types.UID]bool{},
	}
}

// replaceSlice notes that a slice changed: one that is nil was not there before, or is not there anymore.
func (c *cluster) replaceSlice(before, after *resourceapi.ResourceSlice) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if before != nil {
		c.removeSlice(before)
	}
	if after != nil {
		c.addSlice(after)
	}
}

func (c *cluster) addSlice(s *resourceapi.ResourceSlice) {
	if s.Spec.NodeName == nil {
		c.elsewhere[s.Spec.Driver]++
		return
	}
	views := c.views[*s.Spec.NodeName]
	at, found := findView(views, s.Spec.Driver)
	if !found {
		views = slices.Insert(views, at, &view{driver: s.Spec.Driver, slices: map[string]*resourceapi.ResourceSlice{}})
		c.views[*s.Spec.NodeName] = views
	}
	v := views[at]
	v.slices[s.Name] = s
	v.stale = true
	c.owners[poolKey{s.Spec.Driver, s.Spec.Pool.Name}] = v
}

func (c *cluster) removeSlice(s *resourceapi.ResourceSlice) {
	if s.Spec.NodeName == nil {
		if c.elsewhere[s.Spec.Driver]--; c.elsewhere[s.Spec.Driver] <= 0 {
			delete(c.elsewhere, s.Spec.Driver)
		}
		return
	}
	views := c.views[*s.Spec.NodeName]
	at, found := findView(views, s.Spec.Driver)
	if !found {
		return
	}
	v := views[at]
	delete(v.slices, s.Name)
	v.stale = true
	key := poolKey{s.Spec.Driver, s.Spec.Pool.Name}
	same := func(name string) bool { return v.slices[name].Spec.Pool.Name == s.Spec.Pool.Name }
	if c.owners[key] == v && !slices.ContainsFunc(sortedKeys(v.slices), same) {
		delete(c.owners, key)
	}
	if len(v.slices) == 0 {
		views = slices.Delete(views, at, at+1)
		c.views[*s.Spec.NodeName] = views
	}
	if len(views) == 0 {
		delete(c.views, *s.Spec.NodeName)
	}
}

func findView(views []*view, driver string) (at int, found bool) {
	return slices.BinarySearchFunc(views, driver, func(v *view, driver string) int { return strings.Compare(v.driver, driver) })
}

// replaceRule notes that a DeviceTaintRule changed. Rules are few and change rarely: all nodes are read again.
func (c *cluster) replaceRule(name string, rule *resourceapi.DeviceTaintRule) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if rule == nil {
		delete(c.rules, name)
	} else {
		c.rules[name] = rule
	}
	for _, views := range c.views {
		for _, v := range views {
			v.stale = true
		}
	}
}

// store notes a claim's devices as the API server has them; nil: it has none. What was assumed goes once it is stored, or
// the claim is gone.
func (c *cluster) store(uid types.UID, results []resourceapi.DeviceRequestAllocationResult, gone bool) {
	c.change(uid, func(s *claimState) {
		s.stored = results
		if results != nil || gone {
			s.assumed = nil
		}
	})
}

// assume notes devices that a claim will have, or, with nil, that it will not.
func (c *cluster) assume(uid types.UID, results []resourceapi.DeviceRequestAllocationResult) {
	c.change(uid, func(s *claimState) { s.assumed = results })
}

func (c *cluster) change(uid types.UID, do func(*claimState)) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	s := c.claims[uid]
	if s == nil {
		s = &claimState{}
		c.claims[uid] = s
	}
	before := s.current()
	do(s)
	after := s.current()
	if len(after) == 0 {
		delete(c.claims, uid)
	}
	if sameDevices(before, after) {
		return
	}
	c.use(uid, before, false)
	c.use(uid, after, true)
}

// use adds a claim's devices to the nodes that have them, or takes them away.
func (c *cluster) use(uid types.UID, results []resourceapi.DeviceRequestAllocationResult, add bool) {
	var done []*view
	for i := range results {
		key := poolKey{results[i].Driver, results[i].Pool}
		if add {
			if c.users[key] == nil {
				c.users[key] = map[types.UID]bool{}
			}
			c.users[key][uid] = true
		} else if delete(c.users[key], uid); len(c.users[key]) == 0 {
			delete(c.users, key)
		}
		v := c.owners[key]
		if v == nil || v.stale || v.node == nil || slices.Contains(done, v) {
			continue
		}
		done = append(done, v)
		clear(v.plans)
		if add {
			v.state.Allocate(v.node.Uses(results)...)
		} else {
			v.state.Release(v.node.Uses(results)...)
		}
	}
}

// sameDevices reports whether two allocations have the same devices. What a share consumes does not change.
func sameDevices(a, b []resourceapi.DeviceRequestAllocationResult) bool {
	return slices.EqualFunc(a, b, func(a, b resourceapi.DeviceRequestAllocationResult) bool {
		sameShare := a.ShareID == b.ShareID || a.ShareID != nil && b.ShareID != nil && *a.ShareID == *b.ShareID
		return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device && sameShare
	})
}

// refresh reads a view whose slices changed.
func (c *cluster) refresh(v *view) {
	if !v.stale {
		return
	}
	v.stale, v.node, v.state, v.plans = false, nil, nil, map[string]plan{}
	published := make([]*resourceapi.ResourceSlice, 0, len(v.slices))
	users := map[types.UID]bool{}
	for _, name := range sortedKeys(v.slices) {
		s := v.slices[name]
		published = append(published, s)
		for uid := range c.users[poolKey{s.Spec.Driver, s.Spec.Pool.Name}] {
			users[uid] = true
		}
	}
	rules := make([]*resourceapi.DeviceTaintRule, 0, len(c.rules))
	for _, name := range sortedKeys(c.rules) {
		rules = append(rules, c.rules[name])
	}
	node, err := c.cache.Node(published, rules...)
	if err != nil {
		return // the allocator takes nothing from it either
	}
	v.node, v.state = node, node.NewState()
	for uid := range users {
		v.state.Allocate(node.Uses(c.claims[uid].current())...)
	}
}

// plan is what would become of a demand on a view.
func (c *cluster) plan(ctx context.Context, v *view, d pools.Demand) plan {
	c.refresh(v)
	if v.node == nil {
		return plan{}
	}
	if known, ok := v.plans[d.Key]; ok {
		return known
	}
	p := c.foresee(ctx, v, d)
	if errors.Is(p.err, context.Canceled) || errors.Is(p.err, context.DeadlineExceeded) {
		return p
	}
	if len(v.plans) >= maxPlans {
		clear(v.plans)
	}
	v.plans[d.Key] = p
	return p
}

func (c *cluster) foresee(ctx context.Context, v *view, d pools.Demand) plan {
	requests, err := c.cache.Requests(ctx, v.node, d)
	if err != nil {
		return plan{err: err}
	}
	p := plan{complete: true}
	for _, r := range requests {
		some := r.Match.Count() > 0
		p.matches = p.matches || some
		p.complete = p.complete && some
	}
	if !p.complete {
		return p
	}
	uses, fits, err := v.state.Fit(requests...)
	p.fits, p.err = fits, err
	if fits {
		p.cost = v.state.Cost(uses)
	}
	return p
}
