// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// FreedFor is the pod that others were evicted for with the devices of a claim, which another pod would take over; nil for none. That
// pod has to wait: the claim would never be released, and the replacement of each victim would be evicted in turn. It is tried again
// when the hold has ended.
func (s *Shared) FreedFor(pod *corev1.Pod, claim *resourceapi.ResourceClaim) *corev1.Pod {
	c := s.current()
	if c == nil || len(results(claim)) == 0 {
		return nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	who := holderOf(pod)
	for uid, h := range c.holds.of {
		if uid != who.uid && schedulinghelpers.PodPriority(h.pod) >= who.priority && sameDevices(h.freed[claim.UID], results(claim)) {
			c.holds.refused[who.uid] = refusedPod{pod: pod}
			return h.pod
		}
	}
	return nil
}

// HeldWith is a pod for which devices are held, which shares one of a pod's claims that has none yet; nil for none. Both get what the claim
// gets, so that the other pod evicts nobody. It is tried again when the hold has ended, and by the event of its claim.
func (s *Shared) HeldWith(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) *corev1.Pod {
	c := s.current()
	if c == nil {
		return nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	who := holderOf(pod)
	if c.holds.of[who.uid] != nil {
		return nil
	}
	for _, h := range c.holds.of {
		if schedulinghelpers.PodPriority(h.pod) >= who.priority && slices.ContainsFunc(claims, func(claim *resourceapi.ResourceClaim) bool {
			return len(results(claim)) == 0 && c.allocated[claim.UID] == nil && refersTo(h.pod, claim)
		}) {
			c.holds.refused[who.uid] = refusedPod{pod: pod}
			return h.pod
		}
	}
	return nil
}

// claimGone ends the holds of pods that name a claim which is gone. DynamicResources keeps such a pod out of the queue (PreEnqueue), so
// that no attempt ends its hold. A claim of a template is made again.
func (h *holds) claimGone(claim *resourceapi.ResourceClaim) {
	for _, uid := range slices.Sorted(maps.Keys(h.of)) {
		if slices.Contains(named(h.of[uid].pod), claim.Name) && h.of[uid].pod.Namespace == claim.Namespace {
			h.ended = append(h.ended, h.end(uid))
		}
	}
}

// tellEnded tells of holds that ended with a claim. It must not be called with the mutex, or in answer to an event, like tell.
func (h *holds) tellEnded() {
	h.mutex.Lock()
	ended := h.ended
	h.ended = nil
	h.mutex.Unlock()
	for _, node := range ended {
		h.tell(node, "", false)
	}
}

// hasClaims reports whether the claims that a pod names are there.
func (h *holds) hasClaims(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(named(pod), func(name string) bool {
		object, ok, err := h.claims.GetByKey(pod.Namespace + "/" + name)
		claim, isClaim := object.(*resourceapi.ResourceClaim)
		return err == nil && (!ok || isClaim && claim.DeletionTimestamp != nil)
	})
}

// named are the names of the claims that a pod has of its own accord, not by a template.
func named(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.ResourceClaims {
		if name := pod.Spec.ResourceClaims[i].ResourceClaimName; name != nil {
			names = append(names, *name)
		}
	}
	return names
}

// takeRefused are the pods that FreedFor kept from a claim and HeldWith from evictions since the last call, and those that Held kept from
// devices of a node, unless those are taken; but for one.
func (h *holds) takeRefused(node string, except types.UID, taken bool) (found []*corev1.Pod) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	maps.DeleteFunc(h.refused, func(uid types.UID, r refusedPod) bool {
		ends := uid != except && (r.nodes == nil || r.nodes.Has(node) && !taken)
		if ends {
			found = append(found, r.pod)
		}
		return ends
	})
	return found
}

// returned are the pods that were to get their node when they were evicted for another pod: kube-scheduler puts those back into its
// queue. They have their claims until their next attempt, which gives them up.
func returned(c *cluster, preemptor holder) map[types.UID]bool {
	h := c.holds.of[preemptor.uid]
	if h == nil {
		return nil
	}
	found := map[types.UID]bool{}
	for uid, freed := range h.freed {
		s := c.allocated[uid]
		if s == nil || s.stored == nil || !sameDevices(freed, s.stored) {
			continue
		}
		consumers, _ := pools.Consumers(s.claim)
		for _, r := range consumers {
			pod := c.holds.pod(s.claim.Namespace, r.Name, r.UID)
			if pod != nil && pod.Spec.NodeName == "" && !c.holds.binding[r.UID] && schedulinghelpers.PodPriority(pod) <= preemptor.priority {
				found[r.UID] = true
			}
		}
	}
	return found
}
