// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"errors"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// cluster is what is published and allocated, kept up to date by events. Nodes whose slices changed are read again when they
// are next asked for; allocations change a node's state in place.
type cluster struct {
	mutex sync.Mutex
	cache *pools.Cache
	// What the API server has, as far as it is applied.
	slices *mirror[*resourceapi.ResourceSlice]
	claims *mirror[*resourceapi.ResourceClaim]
	rules  *mirror[*resourceapi.DeviceTaintRule]
	// synced report that all objects of the start are applied.
	synced []cache.DoneChecker
	// ahead is closed when readAhead has ended.
	ahead chan struct{}
	// views by node, ordered by driver.
	views map[string][]*view
	// elsewhere are the drivers of slices that are not of one node and of pools that are of several, with their number.
	elsewhere tally
	// allocated are the claims that have devices, and the pods whose claim for extended resources is not known yet; extended
	// are the names of those that are, by the UID of the pod.
	allocated map[types.UID]*claimState
	extended  map[types.UID]string
	// owners are the views that a pool is of, users the claims that have devices of it.
	owners map[poolKey][]*view
	users  map[poolKey]map[types.UID]bool
	holds  *holds
	// changed is called with each node where slices, allocations or what is prepared of them changed.
	changed func(node string)
	// tie orders equal nodes for a pod.
	tie func(pod types.UID, node string) uint64
}

type poolKey struct{ driver, pool string }

// view is what a driver publishes for a node, and what of it is allocated.
type view struct {
	driver string
	of     string                                // the node
	slices map[string]*resourceapi.ResourceSlice // by name
	stale  bool
	node   *pools.Node // nil where no pool is complete
	state  *packing.State
	plans  map[string]plan // by the key of a demand and of holds; dropped when anything changes
	// evictions are known by the key of a demand, and dropped, too.
	evictions map[string]knownEviction
	// alone is whether demands fit without others, dropped like evictions.
	alone map[aloneKey]alone
	// used: the last look found no claim with a pod that is gone, and none has gone since.
	used bool
}

// plan predicts a demand on a node, as far as it is for devices of a driver.
type plan struct {
	// requests are those of the demand that select devices of the driver, as bits, local those of which each alternative does.
	requests, local uint64
	fits            bool
	// err is why nothing can be predicted.
	err  error
	cost packing.Cost
}

// maxPlans bounds the plans of a node.
const maxPlans = 100

// sliceChanged notes that a slice changed: one that is nil was not there before, or is not there anymore.
func (c *cluster) sliceChanged(before, after *resourceapi.ResourceSlice) {
	if before != nil {
		c.removeSlice(before)
	}
	if after != nil {
		c.addSlice(after)
		if after.Spec.NodeName != nil {
			c.changed(*after.Spec.NodeName)
		}
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
		views = slices.Insert(views, at, &view{driver: s.Spec.Driver, of: *s.Spec.NodeName, slices: map[string]*resourceapi.ResourceSlice{}})
		c.views[*s.Spec.NodeName] = views
	}
	v := views[at]
	v.slices[s.Name] = s
	v.stale = true
	key := poolKey{s.Spec.Driver, s.Spec.Pool.Name}
	if !slices.Contains(c.owners[key], v) {
		c.owners[key] = append(c.owners[key], v)
		if len(c.owners[key]) == 2 {
			c.elsewhere[key.driver]++ // the allocator has the whole pool, each view a part of it
		}
	}
}

func (c *cluster) removeSlice(s *resourceapi.ResourceSlice) {
	if s.Spec.NodeName == nil {
		c.elsewhere.leave(s.Spec.Driver)
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
	if !slices.ContainsFunc(slices.Sorted(maps.Keys(v.slices)), same) {
		disown(c, key, v)
	}
	if len(v.slices) == 0 {
		views = slices.Delete(views, at, at+1)
		c.views[*s.Spec.NodeName] = views
	}
	if len(views) == 0 {
		delete(c.views, *s.Spec.NodeName)
	}
}

// disown notes that a view has nothing of a pool anymore.
func disown(c *cluster, key poolKey, v *view) {
	owners := slices.DeleteFunc(c.owners[key], func(o *view) bool { return o == v })
	switch {
	case len(owners) == len(c.owners[key]):
		return
	case len(owners) == 0:
		delete(c.owners, key)
	default:
		c.owners[key] = owners
		if len(owners) == 1 {
			c.elsewhere.leave(key.driver)
		}
	}
}

// tally counts by driver.
type tally map[string]int

func (t tally) leave(driver string) {
	if t[driver]--; t[driver] <= 0 {
		delete(t, driver)
	}
}

func findView(views []*view, driver string) (at int, found bool) {
	return slices.BinarySearchFunc(views, driver, func(v *view, driver string) int { return strings.Compare(v.driver, driver) })
}

// ruleChanged notes that a DeviceTaintRule changed. The controller writes the status of a rule that evicts every few seconds
// (pkg/controller/devicetainteviction): only another spec makes a difference.
func (c *cluster) ruleChanged(before, after *resourceapi.DeviceTaintRule) {
	if before != nil && after != nil && equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return
	}
	for _, views := range c.views {
		for _, v := range views {
			v.stale = v.stale || v.concerns(before) || v.concerns(after)
		}
	}
}

// concerns reports whether a rule may select devices of the view.
func (v *view) concerns(rule *resourceapi.DeviceTaintRule) bool {
	if rule == nil || rule.Spec.DeviceSelector == nil {
		return false
	}
	s := rule.Spec.DeviceSelector
	if s.Driver != nil && *s.Driver != v.driver {
		return false
	}
	for _, published := range v.slices {
		if s.Pool == nil || *s.Pool == published.Spec.Pool.Name {
			return true
		}
	}
	return false
}

// refresh reads a view whose slices changed.
func (c *cluster) refresh(v *view) {
	if !v.stale {
		return
	}
	v.stale, v.node, v.state, v.used = false, nil, nil, false
	v.plans, v.evictions, v.alone = map[string]plan{}, map[string]knownEviction{}, map[aloneKey]alone{}
	published := make([]*resourceapi.ResourceSlice, 0, len(v.slices))
	users := map[types.UID]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.slices)) {
		s := v.slices[name]
		published = append(published, s)
		for uid := range c.users[poolKey{s.Spec.Driver, s.Spec.Pool.Name}] {
			users[uid] = true
		}
	}
	rules := make([]*resourceapi.DeviceTaintRule, 0, len(c.rules.applied))
	for _, name := range slices.Sorted(maps.Keys(c.rules.applied)) {
		rules = append(rules, c.rules.applied[name])
	}
	node, err := c.cache.Node(published, rules...)
	if err != nil {
		return // the allocator takes nothing from it either
	}
	v.node, v.state = node, node.NewState()
	for uid := range users {
		v.state.Allocate(node.Uses(c.allocated[uid].current())...)
	}
}

// plan predicts a demand on a view.
func (c *cluster) plan(ctx context.Context, v *view, q query) plan {
	c.refresh(v)
	if v.node == nil {
		return plan{}
	}
	d := q.demand
	holds, key := c.holds.keyed(v.of, q.holder)
	key = d.Key + key
	if known, ok := v.plans[key]; ok {
		return known
	}
	state := v.state
	if len(holds) > 0 {
		state = state.Clone()
		v.keep(c, state, holds, nil)
	}
	p := v.predict(ctx, c.cache, state, d)
	if errors.Is(p.err, context.Canceled) || errors.Is(p.err, context.DeadlineExceeded) {
		return p
	}
	if len(v.plans) >= maxPlans {
		clear(v.plans)
	}
	v.plans[key] = p
	return p
}

func (v *view) predict(ctx context.Context, cache *pools.Cache, state *packing.State, d pools.Demand) plan {
	own, which, err := v.requests(ctx, cache, d)
	if err != nil || which == 0 {
		return plan{err: err}
	}
	p := plan{requests: which}
	at := 0
	for i := range uint64(bits.Len64(which)) {
		if which>>i&1 == 0 {
			continue
		}
		if !slices.ContainsFunc(own[at].Alternatives, func(r packing.Request) bool { return !r.Any() }) {
			p.local |= 1 << i
		}
		at++
	}
	uses, rank, fits, err := state.FitRanked(own...)
	p.fits, p.err = fits, err
	if fits {
		p.cost = state.Cost(uses)
		p.cost.Rank = rank
	}
	return p
}

// requests are those of a demand that select devices of the view, and which ones they are.
func (v *view) requests(ctx context.Context, cache *pools.Cache, d pools.Demand) (own []packing.Request, which uint64, err error) {
	all, err := cache.Requests(ctx, v.node, d)
	if err != nil {
		return nil, 0, err
	}
	for i := range all {
		if all[i].Any() {
			which |= 1 << i
		}
	}
	if which == d.All() {
		return all, which, nil
	}
	for i := range all {
		if which>>i&1 == 1 {
			own = append(own, all[i])
		}
	}
	return own, which, nil
}
