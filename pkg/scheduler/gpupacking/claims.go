// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// claimState is a claim's devices: as stored at the API server, and as assumed until it is stored.
type claimState struct {
	// claim is that of the stored devices.
	claim           *resourceapi.ResourceClaim
	stored, assumed []resourceapi.DeviceRequestAllocationResult
	// written is the version in which the API server has the assumed devices; empty while it may not have them.
	written string
}

// current is what counts.
func (s *claimState) current() []resourceapi.DeviceRequestAllocationResult {
	if s.stored != nil {
		return s.stored
	}
	return s.assumed
}

// claimChanged notes a claim as the API server has it.
func (c *cluster) claimChanged(before, after *resourceapi.ResourceClaim) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.change(before.UID, func(s *claimState) { *s = claimState{} })
	}
	if before != nil && (after == nil || after.UID != before.UID || after.DeletionTimestamp != nil) {
		c.holds.claimGone(before)
	}
	c.extendedChanged(before, after)
	touch(c, before)
	if after == nil {
		return
	}
	c.change(after.UID, func(s *claimState) {
		s.claim, s.stored = after, results(after)
		s.superseded(after)
	})
	if left(before, after) {
		for _, r := range results(after) {
			for _, v := range c.owners[poolKey{r.Driver, r.Pool}] {
				clear(v.alone)
			}
		}
	}
	touch(c, after)
}

// left reports whether somebody does not use a claim anymore: it may be one now whose pods can all be evicted.
func left(before, after *resourceapi.ResourceClaim) bool {
	gone := func(r resourceapi.ResourceClaimConsumerReference) bool {
		return !slices.Contains(after.Status.ReservedFor, r)
	}
	return before != nil && after != nil && slices.ContainsFunc(before.Status.ReservedFor, gone)
}

// touch tells of the nodes whose devices a claim has.
func touch(c *cluster, claim *resourceapi.ResourceClaim) {
	for _, r := range results(claim) {
		for _, v := range c.owners[poolKey{r.Driver, r.Pool}] {
			c.changed(v.of)
		}
	}
}

// superseded ends the assumption once the API server has it, or something newer.
func (s *claimState) superseded(by *resourceapi.ResourceClaim) {
	if by.Status.Allocation != nil || s.written != "" && !older(by.ResourceVersion, s.written) {
		s.assumed = nil
	}
}

// extendedChanged follows the claims for extended resources, whose devices are assumed under the UID of the pod.
func (c *cluster) extendedChanged(before, after *resourceapi.ResourceClaim) {
	was, is := extendedPod(before), extendedPod(after)
	if was != "" && (is != was || after.UID != before.UID) {
		delete(c.extended, was)
		c.change(was, func(s *claimState) { s.assumed = nil })
	}
	if is != "" {
		c.extended[is] = cache.MetaObjectToName(after).String()
		c.change(is, func(s *claimState) { s.superseded(after) })
	}
}

// older compares two versions of an object. Those that cannot be compared are taken to be in order.
func older(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// assume notes devices that a claim will have.
func (c *cluster) assume(uid types.UID, results []resourceapi.DeviceRequestAllocationResult) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.change(uid, func(s *claimState) { s.assumed, s.written = results, "" })
}

// forget notes that a claim will not have the devices that it was assumed to have. It reports whether that makes a difference.
func (c *cluster) forget(uid types.UID) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.change(uid, func(s *claimState) { s.assumed = nil })
}

// confirm notes that the API server has what was assumed of a claim, from a version on; empty where the claim is gone. What
// is assumed ends here, or as soon as the informer has that version.
func (c *cluster) confirm(claim reservedClaim, version string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	key := claim.namespace + "/" + claim.name
	c.claims.follow(key)
	known := c.claims.applied[key]
	c.change(claim.holder, func(s *claimState) {
		if version == "" || known == nil || known.UID != claim.uid || !older(known.ResourceVersion, version) {
			s.assumed = nil
		} else {
			s.written = version
		}
	})
}

// change updates the state of a claim, with the mutex held. It reports whether its devices changed.
func (c *cluster) change(uid types.UID, do func(*claimState)) bool {
	s := c.allocated[uid]
	if s == nil {
		s = &claimState{}
	}
	before := s.current()
	do(s)
	after := s.current()
	if len(after) == 0 {
		delete(c.allocated, uid)
	} else {
		c.allocated[uid] = s
	}
	if sameDevices(before, after) {
		return false
	}
	c.use(uid, before, false)
	c.use(uid, after, true)
	return true
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
		for _, v := range c.owners[key] {
			if v.stale || v.node == nil || slices.Contains(done, v) {
				continue
			}
			done = append(done, v)
			clear(v.plans)
			clear(v.evictions)
			clear(v.alone)
			v.used = false
			if add {
				v.state.Allocate(v.node.Uses(results)...)
			} else {
				v.state.Release(v.node.Uses(results)...)
			}
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
