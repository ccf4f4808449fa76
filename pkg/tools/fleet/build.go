// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// build makes the next snapshot from what changed, and publishes it if it differs.
func (s *Source) build(ctx context.Context) {
	changed, old := s.take(), s.Snapshot()
	if old == nil {
		old = &Snapshot{}
	}
	next := &Snapshot{Version: old.Version + 1, Notices: slices.Clone(s.notices)}
	s.mu.Lock()
	if s.lost != "" {
		next.Notices = append(next.Notices, s.lost)
	}
	s.mu.Unlock()
	next.Nodes = s.nodes(ctx, old, changed, next.Version)
	next.Claims = s.claims(old, changed, next.Version)
	if old.Version > 0 && !changed.reasons && slices.Equal(next.Nodes, old.Nodes) && slices.Equal(next.Claims, old.Claims) &&
		slices.Equal(next.Notices, old.Notices) {
		return
	}
	next.Totals = totalsOf(next.Nodes, next.Claims)
	s.publish(next)
}

// nodes are those of the next snapshot: the old ones, and the changed ones read again.
func (s *Source) nodes(ctx context.Context, old *Snapshot, changed dirty, version uint64) []*Node {
	have := map[string]*Node{}
	for _, n := range old.Nodes {
		have[n.Name] = n
	}
	names := slices.Sorted(maps.Keys(changed.nodes))
	if changed.all {
		all := s.watches.slices.GetIndexer().ListIndexFuncValues(byNode)
		names = slices.Compact(slices.Sorted(slices.Values(slices.Concat(all, slices.Sorted(maps.Keys(have))))))
	}
	read := make([]*Node, len(names))
	var wg sync.WaitGroup
	work := make(chan int)
	for range min(len(names), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range work {
				read[i] = s.node(ctx, names[i], have[names[i]])
			}
		})
	}
	for i := range names {
		work <- i
	}
	close(work)
	wg.Wait()
	for i, name := range names {
		n := read[i]
		if n == nil {
			delete(have, name)
			continue
		}
		if before := have[name]; before != nil {
			if n.Version = before.Version; reflect.DeepEqual(n, before) {
				continue
			}
		}
		n.Version = version
		have[name] = n
	}
	return slices.SortedFunc(maps.Values(have), func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
}

// node reads a node; nil if it has no slices. While its pool is not complete, it shows the GPUs of before.
func (s *Source) node(ctx context.Context, name string, before *Node) *Node {
	pool, err := s.pool(name)
	var view *inspect.View
	if err == nil {
		view, err = inspect.OfPool(*pool)
	}
	var n *Node
	switch {
	case errors.Is(err, ErrUnknown):
		return nil
	case err != nil:
		klog.FromContext(ctx).V(2).Info("A node's slices cannot be shown", "node", name, "err", err)
		n = &Node{Name: name, Problems: []string{err.Error()}, GPUs: []GPU{}, Free: []inspect.Amount{}}
		if before != nil {
			n.GPUs = slices.Clone(before.GPUs)
		}
	default:
		n = nodeOf(view)
		if state, err := s.packing.State(pool.Slices, pool.Claims, pool.Rules); err != nil {
			n.close()
			n.Problems = append(slices.Clip(n.Problems), fmt.Sprintf("its fragmentation is unknown: %v", err))
		} else {
			n.left = state.Free()
			n.Fragmentation = n.left.Fragmentation()
		}
	}
	if s.watches.nodes == nil {
		return n
	}
	n.State = inspect.NodeUnknown
	if o, found, err := s.watches.nodes.GetStore().GetByKey(name); err == nil && found {
		m := o.(*machine)
		n.State, n.Policy, n.Taints = m.state, m.policy, m.hard()
	}
	if n.State != "" {
		n.close()
	}
	return n
}

// pool collects the objects about a node.
func (s *Source) pool(node string) (*inspect.Pool, error) {
	packed, err := s.watches.slices.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil, fmt.Errorf("find the ResourceSlices of node %s: %w", node, err)
	}
	if len(packed) == 0 {
		return nil, fmt.Errorf("node %s has no ResourceSlices of driver %s: %w", node, s.config.Driver, ErrUnknown)
	}
	p := &inspect.Pool{Node: node, Driver: s.config.Driver}
	pools := map[string]bool{}
	for _, o := range packed {
		slice, err := o.(*packedSlice).unpack()
		if err != nil {
			return nil, err
		}
		p.Slices = append(p.Slices, *slice)
		pools[slice.Spec.Pool.Name] = true
	}
	seen := map[*resourceapi.ResourceClaim]bool{}
	for pool := range pools {
		claims, err := s.watches.claims.GetIndexer().ByIndex(byPool, pool)
		if err != nil {
			return nil, fmt.Errorf("find the claims of node %s: %w", node, err)
		}
		for _, o := range claims {
			if c := o.(*resourceapi.ResourceClaim); !seen[c] {
				seen[c] = true
				p.Claims = append(p.Claims, *c)
			}
		}
	}
	slices.SortFunc(p.Claims, func(a, b resourceapi.ResourceClaim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, r := range listed[resourceapi.DeviceTaintRule](s.watches.rules) {
		p.Rules = append(p.Rules, *r)
	}
	return p, nil
}

// listed are the objects of an informer, in order of their keys.
func listed[T any](i cache.SharedIndexInformer) []*T {
	if i == nil {
		return nil
	}
	var all []*T
	for _, key := range slices.Sorted(slices.Values(i.GetStore().ListKeys())) {
		if o, found, err := i.GetStore().GetByKey(key); err == nil && found {
			if object, ok := o.(*T); ok {
				all = append(all, object)
			}
		}
	}
	return all
}

// claims are those of the next snapshot.
func (s *Source) claims(old *Snapshot, changed dirty, version uint64) []*Claim {
	have := map[string]*Claim{}
	for _, c := range old.Claims {
		have[c.Key()] = c
	}
	keys := slices.Sorted(maps.Keys(changed.claims))
	if changed.all { // those that were there, too: they may have been deleted meanwhile
		all := slices.Concat(s.watches.claims.GetStore().ListKeys(), slices.Collect(maps.Keys(have)), keys)
		for _, p := range listed[corev1.Pod](s.watches.pods) {
			all = append(append(all, extendedKey(p)), claimsOf(p)...)
		}
		keys = slices.Compact(slices.Sorted(slices.Values(all)))
	}
	for _, key := range keys {
		before := have[key]
		delete(have, key)
		c := s.row(key)
		if c == nil {
			continue
		}
		if before != nil {
			if c.Version = before.Version; reflect.DeepEqual(c, before) {
				have[key] = before
				continue
			}
		}
		c.Version = version
		have[key] = c
	}
	return slices.SortedFunc(maps.Values(have), func(a, b *Claim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

// row is that of a claim, or of pods that wait for one that does not exist; nil if there is none that concerns the driver.
func (s *Source) row(key string) *Claim {
	if object, err := s.Claim(key); err == nil {
		if !s.watches.concerns(object) {
			return nil
		}
		return s.claimOf(object)
	}
	if p := s.watches.extendedPod(key); p != nil {
		if c := s.watches.extendedClaim(p); c != nil {
			return c
		}
	}
	return s.watches.missingClaim(key)
}

// Claim is the object of a claim, "namespace/name". It must not be changed.
func (s *Source) Claim(key string) (*resourceapi.ResourceClaim, error) {
	o, found, err := s.watches.claims.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil, fmt.Errorf("claim %s: %w", key, cmp.Or(err, ErrUnknown))
	}
	return o.(*resourceapi.ResourceClaim), nil
}

// concerns reports whether a claim has or wants devices of the driver.
func (w *watches) concerns(c *resourceapi.ResourceClaim) bool {
	if c.Status.Allocation != nil {
		return len(w.pools(c)) > 0
	}
	return w.wanted(c.Spec.Devices.Requests)
}

// wanted reports whether requests are for devices of the driver. What a class selects is not known, but the classes of a driver name it.
func (w *watches) wanted(requests []resourceapi.DeviceRequest) bool {
	for i := range requests {
		for _, a := range asksOf(&requests[i]) {
			if w.classes == nil {
				return true
			}
			o, found, err := w.classes.GetStore().GetByKey(a.class)
			if err != nil || !found || resourcepool.SelectsDriver(o.(*resourceapi.DeviceClass), w.driver) {
				return true
			}
		}
	}
	return false
}

// ask is one alternative of a request.
type ask struct {
	class string
	mode  resourceapi.DeviceAllocationMode
	count int64
}

func (a ask) String() string {
	switch {
	case a.mode == resourceapi.DeviceAllocationModeAll:
		return "all of " + a.class
	case a.count > 1:
		return fmt.Sprintf("%dx %s", a.count, a.class)
	default:
		return a.class
	}
}

func asksOf(r *resourceapi.DeviceRequest) []ask {
	if r.Exactly != nil {
		return []ask{{r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count}}
	}
	var all []ask
	for _, sub := range r.FirstAvailable {
		all = append(all, ask{sub.DeviceClassName, sub.AllocationMode, sub.Count})
	}
	return all
}

// requestsOf are requests in words.
func requestsOf(requests []resourceapi.DeviceRequest) []Request {
	all := []Request{}
	for i := range requests {
		r := Request{Name: requests[i].Name, Asks: []string{}}
		for _, a := range asksOf(&requests[i]) {
			r.Asks = append(r.Asks, a.String())
		}
		all = append(all, r)
	}
	return all
}

// claimOf is a claim's row.
func (s *Source) claimOf(o *resourceapi.ResourceClaim) *Claim {
	c := &Claim{
		Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.UTC(),
		Allocated: o.Status.Allocation != nil, Deleting: o.DeletionTimestamp != nil, Requests: requestsOf(o.Spec.Devices.Requests),
	}
	for _, user := range o.Status.ReservedFor {
		if user.Resource == "pods" {
			c.Pods = append(c.Pods, user.Name)
		}
	}
	if o.Status.Allocation == nil {
		c.Pods = s.watches.waiting(c.Key(), c.Pods)
		return c
	}
	for _, r := range o.Status.Allocation.Devices.Results {
		if r.Driver != s.config.Driver {
			continue
		}
		d := Device{Request: r.Request, Pool: r.Pool, Device: r.Device, AdminAccess: r.AdminAccess != nil && *r.AdminAccess}
		if nodes := s.watches.nodesOf(r.Pool); len(nodes) > 0 {
			d.Node = slices.Min(nodes)
		}
		d.UUID = explain.UUID(o, &r)
		c.Devices = append(c.Devices, d)
	}
	return c
}
