// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// keep adds what is held of a view to a state in which some claims are released, and returns it.
func (v *view) keep(c *cluster, state *packing.State, holds []*hold, released map[types.UID]bool) (kept []Result) {
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
		freed := sets.New[string]()
		for _, uid := range slices.Sorted(maps.Keys(h.freed)) {
			if c.allocated[uid] != nil && !released[uid] {
				continue // it has them still
			}
			for _, r := range ofView(h.freed[uid]) {
				if state.TryAllocate(v.node.Uses([]Result{r})...) {
					kept = append(kept, r)
					freed.Insert(r.Device)
				}
			}
		}
		for _, r := range devices {
			if !freed.Has(r.Device) && state.TryAllocate(v.node.Uses([]Result{r})...) {
				kept = append(kept, r)
			}
		}
	}
	return kept
}

// Held are the devices that are kept for other pods than that of a cycle, of some nodes; nil for all nodes. Where GPUPacking passed the pod
// over, and so does not know what it waits for, the pod is tried again when a hold has ended there, unless its pod has the devices.
func (s *Shared) Held(state framework.CycleState, pod *corev1.Pod, nodes sets.Set[string]) (kept []Result) {
	c := s.current()
	if c == nil {
		return nil
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	on := sets.New[string]()
	for _, h := range c.holds.of {
		if nodes == nil || nodes.Has(h.node) {
			on.Insert(h.node)
		}
	}
	for _, node := range sets.List(on) {
		here := c.keptOn(node, holderOf(pod), nil)
		if len(here) == 0 {
			on.Delete(node)
		}
		kept = append(kept, here...)
	}
	if _, err := state.Read(passedKey); err == nil && len(kept) > 0 {
		c.holds.refused[pod.UID] = refusedPod{pod, on}
	}
	return kept
}

// keptOn is what is held on a node if some claims are released.
func (c *cluster) keptOn(node string, who holder, released map[types.UID]bool) (kept []Result) {
	holds := c.holds.on(node, who)
	if len(holds) == 0 {
		return nil
	}
	for _, v := range c.views[node] {
		if state := v.without(c, released); state != nil {
			kept = append(kept, v.keep(c, state, holds, released)...)
		}
	}
	return kept
}

// without is the state of a view after the release of some claims; nil where it has no devices.
func (v *view) without(c *cluster, released map[types.UID]bool) *packing.State {
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
