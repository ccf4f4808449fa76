// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// Gone reports whether a pod is not at the API server anymore.
func Gone(pods corelisters.PodLister, namespace, name string, uid types.UID) bool {
	pod, err := pods.Pods(namespace).Get(name)
	return err != nil || pod.UID != uid
}

// Awaited are the nodes on which a pod may have room once the claims of pods that are gone are deallocated: the one that it is nominated
// for, unless that refuses the pod now, as with a new taint, and those where nobody has to be evicted. None where neither GPUPacking nor
// the filters were asked: another plugin refuses the pod on all nodes.
func (s *Shared) Awaited(state framework.CycleState, pod *corev1.Pod, filtered bool) (nodes []string) {
	d, held := read(state), s.heldNode(pod)
	if held != "" && (d == nil && filtered || d != nil && d.among.has(held)) {
		nodes = append(nodes, held)
	}
	if d == nil {
		return nodes
	}
	for _, node := range slices.Sorted(maps.Keys(d.victims)) {
		if len(d.victims[node]) == 0 && node != held {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Change is how the devices of a node would be allocated if some pods had ended.
type Change struct {
	// Released are the claims of which each consumer has ended.
	Released []*resourceapi.ResourceClaim
	// Kept is what is held then for other pods than the one that asks.
	Kept []Result
}

// Without is what changes for a pod if others end: those of which a function says so, and those that are back in the queue already.
func (s *Shared) Without(pod *corev1.Pod, node string, ends func(namespace, name string, uid types.UID) bool) Change {
	c := s.current()
	if c == nil {
		return Change{}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var change Change
	released, back := map[types.UID]bool{}, returned(c, holderOf(pod))
	for _, claim := range c.claimsOn(node) {
		pods, ok := pools.Consumers(claim)
		stays := func(r resourceapi.ResourceClaimConsumerReference) bool {
			return !back[r.UID] && !ends(claim.Namespace, r.Name, r.UID)
		}
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

// abandoned reports whether claims with devices of a node have pods that are gone. They are about to be deallocated.
func abandoned(c *cluster, node string, pods corelisters.PodLister) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, v := range c.views[node] {
		if v.used {
			continue
		}
		for _, claim := range v.claims(c) {
			consumers, _ := pools.Consumers(claim)
			if slices.ContainsFunc(consumers, func(r resourceapi.ResourceClaimConsumerReference) bool {
				return Gone(pods, claim.Namespace, r.Name, r.UID)
			}) {
				return true
			}
		}
		v.used = !v.stale
	}
	return false
}

// podGone notes that claims of a pod may be about to be deallocated.
func podGone(c *cluster, pod *corev1.Pod) {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err == nil && name != nil {
			abandon(c, pod.Namespace+"/"+*name)
		}
	}
	if key := c.extended[pod.UID]; key != "" {
		abandon(c, key)
	}
}

// abandon has the views of a claim's devices looked at again.
func abandon(c *cluster, key string) {
	for _, r := range results(c.claims.applied[key]) {
		for _, v := range c.owners[poolKey{r.Driver, r.Pool}] {
			v.used = false
		}
	}
}
