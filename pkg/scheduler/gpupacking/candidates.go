// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Candidates are a new set of the nodes to which GPUPacking narrowed a scheduling cycle in its PreFilter; nil where it sees all nodes.
func Candidates(state framework.CycleState) sets.Set[string] {
	d := read(state)
	if d == nil || d.outcome != outcomeNarrowed && d.outcome != outcomeBusy && d.outcome != outcomeEvict {
		return nil
	}
	return d.nodes()
}

// MostTried is on how many nodes evictions are tried in a cycle: on each, the allocator is asked several times.
const MostTried = 100

// Compared are the nodes on which evictions are tried in a cycle that sees all nodes: those with room on their GPUs, where other plugins
// may refuse the pod, and the best of those without; nil where GPUPacking cannot say.
func Compared(state framework.CycleState) sets.Set[string] {
	d := read(state)
	if d == nil || d.outcome != outcomeFallback || len(d.victims) == 0 {
		return nil
	}
	return d.nodes()
}

// CandidateSlices is a scheduler's view of devices that can be limited to those of some nodes. DynamicResources groups the
// slices of the whole cluster for each pod in its PreFilter, which takes half of the scheduler's time where the pod then goes
// to one of four nodes (kubernetes 1.37.1, pkg/scheduler/framework/plugins/dynamicresources, PreFilter and NewAllocator).
type CandidateSlices struct {
	framework.SharedDRAManager
	// only are the nodes that it is limited to; nil for all.
	only atomic.Pointer[sets.Set[string]]
	// uncounted: devices are listed without the counters that they consume.
	uncounted atomic.Bool
	// mu protects index.
	mu    sync.Mutex
	index sliceIndex
}

// Limited calls a function while ResourceSlices lists what the allocator is to see for a pod: the slices for some nodes only, nil for
// all nodes, and where the pod asks for admin access alone, devices without counters. It must not be called twice at once: a
// scheduler's cycles come one after another.
func (c *CandidateSlices) Limited(pod *corev1.Pod, nodes sets.Set[string], call func()) {
	if nodes != nil {
		c.only.Store(&nodes)
		defer c.only.Store(nil)
	}
	if (&asks{dra: c.SharedDRAManager}).onlyAdmin(pod) {
		c.uncounted.Store(true)
		defer c.uncounted.Store(false)
	}
	call()
}

// ResourceSlices lists slices.
func (c *CandidateSlices) ResourceSlices() framework.ResourceSliceLister { return candidateLister{c} }

type candidateLister struct{ *CandidateSlices }

// ListWithDeviceTaintRules lists the slices of pools that have a device for a candidate, or for a node that the slice does not
// name, as Limited says.
func (l candidateLister) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	all, err := l.SharedDRAManager.ResourceSlices().ListWithDeviceTaintRules()
	if only := l.only.Load(); err == nil && only != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		all = l.index.slicesFor(all, *only)
	}
	if err == nil && l.uncounted.Load() {
		all = resourcepool.WithoutCounters(all)
	}
	return all, err
}

// sliceIndex remembers of what node and pool slices are. They are scattered over the scheduler's memory: to read twelve thousand
// of them takes longer than it saves. A slice is never changed, only replaced.
type sliceIndex struct {
	known map[*resourceapi.ResourceSlice]place
	nodes map[string]*mark
	pools map[string]*mark
	// round is the number of the call.
	round int
	// found are the pools of the slices of a call.
	found []*mark
}

// place is the node that a slice names, nil for none, and its pool. Pools of other drivers that have the same name are one here.
type place struct{ node, pool *mark }

// mark is the last round in which a node was a candidate, or a pool had a device for one.
type mark int

// slicesFor keeps pools whole, as the allocator takes nothing of a pool that is not.
func (x *sliceIndex) slicesFor(all []*resourceapi.ResourceSlice, nodes sets.Set[string]) []*resourceapi.ResourceSlice {
	if len(x.known) > 2*len(all) || x.known == nil { // many that it knows are gone
		*x = sliceIndex{known: map[*resourceapi.ResourceSlice]place{}, nodes: map[string]*mark{}, pools: map[string]*mark{}}
	}
	x.round++
	round := mark(x.round)
	for name := range nodes {
		*marked(x.nodes, name) = round
	}
	x.found = x.found[:0]
	for _, s := range all {
		at, ok := x.known[s]
		if !ok {
			at.pool = marked(x.pools, s.Spec.Pool.Name)
			if s.Spec.NodeName != nil {
				at.node = marked(x.nodes, *s.Spec.NodeName)
			}
			x.known[s] = at
		}
		if at.node == nil || *at.node == round {
			*at.pool = round
		}
		x.found = append(x.found, at.pool)
	}
	var kept []*resourceapi.ResourceSlice
	for i, s := range all {
		if *x.found[i] == round {
			kept = append(kept, s)
		}
	}
	return kept
}

func marked(marks map[string]*mark, name string) *mark {
	if marks[name] == nil {
		marks[name] = new(mark)
	}
	return marks[name]
}
