// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// Result is a device that a claim has, or that is kept for a pod.
type Result = resourceapi.DeviceRequestAllocationResult

// hold keeps the devices of a node for a pod that is nominated for it. kube-scheduler counts the CPU and memory of nominated pods for
// others of the same or a lower priority, and knows nothing of their devices. Until the last victim has ended, those that were freed
// are kept; then, those that the pod is to get.
type hold struct {
	pod  *corev1.Pod
	node string
	// devices are those that the allocator would give the pod once its victims have ended; none while they are not known.
	devices []Result
	known   bool
	// freed are the devices of its victims, by claim.
	freed map[types.UID][]Result
	// since orders the holds of one priority.
	since int
}

// holder is for whom devices are looked for: holds of pods of a lower priority, and its own, do not count.
type holder struct {
	uid      types.UID
	priority int32
}

func holderOf(pod *corev1.Pod) holder {
	return holder{pod.UID, schedulinghelpers.PodPriority(pod)}
}

// Hold keeps devices of a node for a pod until it is bound, deleted or nominated for another node: those that it is to get, and those
// of the claims of the pods that are evicted for it.
func (s *Shared) Hold(pod *corev1.Pod, node string, devices []Result, victims []*resourceapi.ResourceClaim) {
	c := s.current()
	if c == nil {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	freed := map[types.UID][]Result{}
	if h := c.holds[pod.UID]; h != nil && h.node == node {
		freed = h.freed
	}
	for _, claim := range victims {
		freed[claim.UID] = results(claim)
	}
	c.hold(pod, node, devices, true, freed)
}

// HeldNode is the node where devices are held for a pod, or that it is nominated for; empty for none.
func (s *Shared) HeldNode(pod *corev1.Pod) string {
	if c := s.current(); c != nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if h := c.holds[pod.UID]; h != nil {
			return h.node
		}
	}
	return pod.Status.NominatedNodeName
}

// Drop ends what Hold began.
func (s *Shared) Drop(pod types.UID) {
	if c := s.current(); c != nil {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.unhold(pod)
	}
}

func (c *cluster) hold(pod *corev1.Pod, node string, devices []Result, known bool, freed map[types.UID][]Result) {
	c.unhold(pod.UID)
	c.held++
	c.holds[pod.UID] = &hold{pod: pod, node: node, devices: devices, known: known, freed: freed, since: c.held}
}

func (c *cluster) unhold(pod types.UID) { delete(c.holds, pod) }

// holdOf reports whether devices are held for a pod.
func (c *cluster) holdOf(pod types.UID) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.holds[pod] != nil
}

// Nominated is a pod that is nominated for a node. What devices are to be kept for it is not known.
type Nominated struct {
	Pod  *corev1.Pod
	Node string
}

// Unknown are pods whose nomination was found at the API server, as after a restart of the scheduler. Each is there once.
func (s *Shared) Unknown() []Nominated {
	c := s.current()
	if c == nil {
		return nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found []Nominated
	for _, uid := range slices.Sorted(maps.Keys(c.holds)) {
		if h := c.holds[uid]; !h.known {
			h.known = true
			found = append(found, Nominated{h.pod, h.node})
		}
	}
	return found
}

// podChanged follows nominations. A pod that this scheduler has nominated is without one at the API server for a moment: only an event
// that takes it away ends a hold.
func (c *cluster) podChanged(before, after *corev1.Pod) {
	if after == nil || after.Spec.NodeName != "" {
		if before != nil {
			c.unhold(before.UID)
		}
		if after != nil {
			c.unhold(after.UID)
		}
		return
	}
	was, is := "", after.Status.NominatedNodeName
	if before != nil {
		was = before.Status.NominatedNodeName
	}
	switch h := c.holds[after.UID]; {
	case was == is:
	case is == "":
		c.unhold(after.UID)
	case h == nil || h.node != is:
		c.hold(after, is, nil, false, nil)
	}
}

// watchPods follows nominations.
func (c *cluster) watchPods(pods cache.SharedIndexInformer) error {
	pod := func(object any) *corev1.Pod {
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		p, _ := object.(*corev1.Pod)
		return p
	}
	changed := func(before, after *corev1.Pod) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.podChanged(before, after)
	}
	registered, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { changed(nil, pod(o)) },
		UpdateFunc: func(a, b any) { changed(pod(a), pod(b)) },
		DeleteFunc: func(o any) { changed(pod(o), nil) },
	})
	if err != nil {
		return err
	}
	c.synced = append(c.synced, registered.HasSyncedChecker())
	return nil
}

// holdsOn are the holds of a node that count for a holder, those of the highest priority first.
func (c *cluster) holdsOn(node string, who holder) []*hold {
	var found []*hold
	for uid, h := range c.holds {
		if h.node == node && uid != who.uid && schedulinghelpers.PodPriority(h.pod) >= who.priority {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b *hold) int {
		return cmp.Or(cmp.Compare(schedulinghelpers.PodPriority(b.pod), schedulinghelpers.PodPriority(a.pod)), cmp.Compare(a.since, b.since))
	})
	return found
}

// keep adds what is held of a view to a state in which some claims are released, and returns it.
func (c *cluster) keep(v *view, state *packing.State, holds []*hold, released map[types.UID]bool) (kept []Result) {
	ofView := func(all []Result) []Result {
		return slices.DeleteFunc(slices.Clone(all), func(r Result) bool {
			_, ok := v.node.Device(r.Pool, r.Device)
			return r.Driver != v.driver || !ok
		})
	}
	for _, h := range holds {
		devices := ofView(h.devices)
		if state.TryAllocate(v.node.Uses(devices)...) {
			kept = append(kept, devices...)
			continue
		}
		for _, uid := range slices.Sorted(maps.Keys(h.freed)) {
			if c.allocated[uid] != nil && !released[uid] {
				continue // it has them still
			}
			for _, r := range ofView(h.freed[uid]) {
				if state.TryAllocate(v.node.Uses([]Result{r})...) {
					kept = append(kept, r)
				}
			}
		}
	}
	return kept
}

// Held are the devices that are kept for other pods than one, of some nodes; nil for all nodes.
func (s *Shared) Held(pod *corev1.Pod, nodes sets.Set[string]) (kept []Result) {
	c := s.current()
	if c == nil {
		return nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	on := map[string]bool{}
	for _, h := range c.holds {
		if nodes == nil || nodes.Has(h.node) {
			on[h.node] = true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(on)) {
		kept = append(kept, c.keptOn(node, holderOf(pod), nil)...)
	}
	return kept
}

// keptOn is what is held on a node if some claims are released.
func (c *cluster) keptOn(node string, who holder, released map[types.UID]bool) (kept []Result) {
	holds := c.holdsOn(node, who)
	if len(holds) == 0 {
		return nil
	}
	for _, v := range c.views[node] {
		if state := c.without(v, released); state != nil {
			kept = append(kept, c.keep(v, state, holds, released)...)
		}
	}
	return kept
}

// without is the state of a view after the release of some claims; nil where it has no devices.
func (c *cluster) without(v *view, released map[types.UID]bool) *packing.State {
	c.refresh(v)
	if v.node == nil {
		return nil
	}
	state := v.state.Clone()
	for _, uid := range slices.Sorted(maps.Keys(released)) {
		if s := c.allocated[uid]; s != nil {
			state.Release(v.node.Uses(s.current())...)
		}
	}
	return state
}
