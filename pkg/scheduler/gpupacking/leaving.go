// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// Gone reports whether a pod is not at the API server anymore.
func Gone(pods corelisters.PodLister, namespace, name string, uid types.UID) bool {
	pod, err := pods.Pods(namespace).Get(name)
	return err != nil || pod.UID != uid
}

// Change is how the devices of a node would be allocated if some pods had ended.
type Change struct {
	// Released are the claims of which each consumer has ended.
	Released []*resourceapi.ResourceClaim
	// Kept is what is held then for other pods than the one that asks.
	Kept []Result
}

// Without is what changes for a pod if others end: those of which a function says so, and those that are gone already.
func (s *Shared) Without(pod *corev1.Pod, node string, ends func(namespace, name string, uid types.UID) bool) Change {
	c := s.current()
	if c == nil {
		return Change{}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var change Change
	released := map[types.UID]bool{}
	for _, claim := range c.claimsOn(node) {
		pods, ok := pools.Consumers(claim)
		stays := func(r resourceapi.ResourceClaimConsumerReference) bool { return !ends(claim.Namespace, r.Name, r.UID) }
		if ok && !slices.ContainsFunc(pods, stays) {
			change.Released = append(change.Released, claim)
			released[claim.UID] = true
		}
	}
	change.Kept = c.keptOn(node, holderOf(pod), released)
	return change
}

// claimsOn are the claims with devices of a node, as the API server has them.
func (c *cluster) claimsOn(node string) (found []*resourceapi.ResourceClaim) {
	seen := map[types.UID]bool{}
	for _, v := range c.views[node] {
		for _, claim := range v.claims(c) {
			if !seen[claim.UID] {
				seen[claim.UID] = true
				found = append(found, claim)
			}
		}
	}
	return found
}

// claims are those with devices of a view, in the order of their UIDs.
func (v *view) claims(c *cluster) (found []*resourceapi.ResourceClaim) {
	seen := map[types.UID]bool{}
	for _, published := range v.slices {
		for uid := range c.users[poolKey{v.driver, published.Spec.Pool.Name}] {
			if s := c.allocated[uid]; !seen[uid] && s != nil && s.stored != nil {
				seen[uid] = true
				found = append(found, s.claim)
			}
		}
	}
	slices.SortFunc(found, func(a, b *resourceapi.ResourceClaim) int { return cmp.Compare(a.UID, b.UID) })
	return found
}
