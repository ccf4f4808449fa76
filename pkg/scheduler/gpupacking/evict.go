// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// eviction is pods of a node that can be evicted for another, as far as the measure can say.
type eviction struct {
	node    string
	victims []types.UID
	loss    packing.Loss
	busy    bool // the node lacks CPU, memory or pod slots, too
	fits    bool // it has the devices as it is
}

// evictor finds evictions for a pod.
type evictor struct {
	who     holder
	rules   *Rules
	now     time.Time
	pods    corelisters.PodLister
	budgets *pools.Budgets
}

func newEvictor(pod *corev1.Pod, rules *Rules, lister corelisters.PodLister,
	all policylisters.PodDisruptionBudgetLister) (*evictor, error) {
	listed, err := all.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return &evictor{who: holderOf(pod), rules: rules, now: time.Now(), pods: lister, budgets: pools.NewBudgets(listed)}, nil
}

// any reports whether a node has pods that may be evicted, or end by themselves, or claims of pods that are gone.
func (e *evictor) any(c *cluster, node framework.NodeInfo) bool {
	return slices.ContainsFunc(node.GetPods(), func(i framework.PodInfo) bool {
		pod := i.GetPod()
		own := schedulinghelpers.PodPriority(pod)
		return own < e.who.priority || own == e.who.priority && (pod.DeletionTimestamp != nil || len(e.rules.MaxRuntime) > 0)
	}) || abandoned(c, node.Node().Name, e.pods)
}

// on finds the least loss for a demand on a node; not ok where none makes room, or the measure has no say. Where several drivers lack
// room, it is the sum of what each of them needs: the dry run spares pods that need not go for both.
func (e *evictor) on(ctx context.Context, c *cluster, q query, node framework.NodeInfo) (found eviction, ok bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	name := node.Node().Name
	p, passed := c.planOn(ctx, name, q)
	if passed != "" || !p.complete {
		return eviction{}, false
	}
	short := p.short
	if len(short) == 0 {
		short = p.parts // it fits, and others may have to go for other resources
	}
	found.node = name
	for i, v := range short {
		one, ok := e.onView(ctx, c, v, q, node)
		if !ok {
			return eviction{}, false
		}
		if i == 0 {
			found = one
			continue
		}
		for _, victim := range one.victims {
			if !slices.Contains(found.victims, victim) {
				found.victims = append(found.victims, victim)
			}
		}
		found.loss = found.loss.Plus(one.loss)
	}
	found.fits = len(p.short) == 0
	return found, true
}

// onView is on for the devices of one driver.
func (e *evictor) onView(ctx context.Context, c *cluster, v *view, q query, node framework.NodeInfo) (found eviction, ok bool) {
	released, all := e.victims(c, v, node)
	holds := c.holds.on(v.of, q.holder)
	sum := sumOf(all, released, e.budgets.Allowed)
	if known, ok := v.evictions[q.demand.Key]; ok && len(holds) == 0 && known.sum == sum {
		return known.eviction, known.ok
	}
	state := v.without(c, released)
	v.keep(c, state, holds, released)
	requests, _, err := v.requests(ctx, c.cache, q.demand)
	if err != nil {
		return eviction{}, false
	}
	chosen, loss, fits, err := state.Evict(all.All, e.budgets.Allowed, requests...)
	ok = err == nil && fits
	found = eviction{node: v.of, loss: loss}
	for _, i := range chosen {
		for _, p := range all.Pods[i] {
			found.victims = append(found.victims, p.UID)
		}
	}
	if len(holds) == 0 {
		if len(v.evictions) >= maxPlans {
			clear(v.evictions)
		}
		v.evictions[q.demand.Key] = knownEviction{sum, found, ok}
	}
	return found, ok
}

// knownEviction is one of a view, and whether there is one, for what sum adds up.
type knownEviction struct {
	sum      uint64
	eviction eviction
	ok       bool
}

var sumSeed = maphash.MakeSeed()

// sumOf stands for all that an eviction depends on besides the allocations of a view.
func sumOf(v *pools.Holders, released map[types.UID]bool, allowed []int) uint64 {
	var h maphash.Hash
	h.SetSeed(sumSeed)
	for _, uid := range slices.Sorted(maps.Keys(released)) {
		maphash.WriteComparable(&h, uid)
	}
	for i := range v.All {
		maphash.WriteComparable(&h, [2]int64{int64(v.All[i].Priority), v.All[i].Since})
		for _, b := range v.All[i].Budgets {
			maphash.WriteComparable(&h, [2]int{b, allowed[b]})
		}
		for _, p := range v.Pods[i] {
			maphash.WriteComparable(&h, p.UID)
		}
	}
	return h.Sum64()
}

// Units are the placement units of the devices that claims have on a node.
func (s *Shared) Units(node string, claims []*resourceapi.ResourceClaim) (n int) {
	c := s.current()
	if c == nil {
		return 0
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, v := range c.views[node] {
		if c.refresh(v); v.node == nil {
			continue
		}
		for _, claim := range claims {
			n += v.node.Model.Units(v.node.Uses(results(claim)))
		}
	}
	return n
}

// victims are the claims of a view that are released anyway, and the holders of those that eviction releases.
func (e *evictor) victims(c *cluster, v *view, node framework.NodeInfo) (released map[types.UID]bool, all *pools.Holders) {
	here := map[types.UID]*corev1.Pod{}
	for _, p := range node.GetPods() {
		here[p.GetPod().UID] = p.GetPod()
	}
	evicting := e.from(here)
	released, all = map[types.UID]bool{}, pools.NewHolders()
	for _, claim := range v.claims(c) {
		end := evicting.EndOf(claim)
		switch {
		case end.Stays != "":
		case len(end.Evict) == 0:
			released[claim.UID] = true
		default:
			all.Add(v.node.Uses(results(claim)), end.Evict)
		}
	}
	all.Complete(e.budgets)
	return released, all
}

// from is the eviction from a node with some pods.
func (e *evictor) from(here map[types.UID]*corev1.Pod) *pools.Evicting {
	return &pools.Evicting{
		Priority: e.who.priority, Now: e.now,
		May: func(pod *corev1.Pod) bool {
			may, _ := e.rules.Evictable(pod, schedulinghelpers.PodPriority(pod), e.who.priority, e.now)
			return may
		},
		Find: func(namespace, name string, uid types.UID) (*corev1.Pod, bool) {
			pod := here[uid]
			return pod, pod == nil && Gone(e.pods, namespace, name, uid)
		},
	}
}

// evictions are the nodes on which pods can be evicted for one that has no room, those of the least loss first. Where nodes have room on
// their GPUs and lack only CPU, memory or pod slots, those count that have no room on their GPUs.
func (e *evictor) evictions(ctx context.Context, c *cluster, nodes framework.NodeInfoLister, among eligible, q query,
	onlyShort bool) []eviction {
	var found []eviction
	for i, names := range [][]string{among.free, among.busy} {
		for _, name := range names {
			node, err := nodes.Get(name)
			if err != nil || !e.any(c, node) {
				continue
			}
			if one, ok := e.on(ctx, c, q, node); ok && (!onlyShort || !one.fits) {
				one.busy = i == 1
				found = append(found, one)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b eviction) int {
		return cmp.Or(a.loss.Compare(b.loss), cmp.Compare(btoi(a.busy), btoi(b.busy)), cmp.Compare(a.node, b.node))
	})
	return found
}

// addEvictions leaves the best nodes on which others may be evicted to the allocator and to preemption, but for those that they refused
// in earlier attempts, unless they refused all. It reports whether they did, or evict nobody for the pod.
func (p *Plugin) addEvictions(ctx context.Context, pod *corev1.Pod, d *decision, most int) (all bool) {
	rules := p.shared.rulesFor(p.handle.ProfileName(), pod)
	if rules == nil {
		return true
	}
	informers := p.handle.SharedInformerFactory()
	e, err := newEvictor(pod, rules, informers.Core().V1().Pods().Lister(), informers.Policy().V1().PodDisruptionBudgets().Lister())
	if err != nil {
		return true // informers do not fail
	}
	found := e.evictions(ctx, p.cluster, p.handle.SnapshotSharedLister().NodeInfos(), d.among, d.query, d.outcome != outcomeFull)
	refused, tried := p.shared.refused.get(pod.UID)
	denied, some := p.shared.denied.get(pod.UID)
	rest := slices.DeleteFunc(slices.Clone(found), func(e eviction) bool { return refused.Has(e.node) || denied.Has(e.node) })
	if all = (tried || some) && len(rest) == 0; all {
		p.shared.refused.remove(pod.UID)
		p.shared.denied.remove(pod.UID)
		rest = found
	}
	if len(found) == 0 {
		return all
	}
	d.victims = map[string][]types.UID{}
	for _, e := range bestOf(rest, d.among.groups, most) {
		d.victims[e.node] = e.victims
	}
	d.more = len(rest) > len(d.victims) && !all
	if d.outcome == outcomeFull {
		d.outcome = outcomeEvict
	}
	return all
}

// bestOf are the best evictions, and the best of each group of nodes that other plugins may refuse as a whole, like withGroups.
func bestOf(all []eviction, g *groups, most int) (found []eviction) {
	hard := map[string]int{}
	for i, e := range all {
		best := i < most
		if g != nil && g.hard != nil {
			best = best || hard[g.hard[e.node]] < perGroup
			hard[g.hard[e.node]]++
		}
		if best {
			found = append(found, e)
		}
	}
	return found
}

// Refused notes that preemption evicts nobody for a pod on the nodes that a cycle left to it. It reports whether another attempt of the pod
// sees other nodes on which evictions make room for it.
func (s *Shared) Refused(state framework.CycleState, pod types.UID) (more bool) {
	d := read(state)
	if d == nil {
		return false
	}
	refused, _ := s.refused.get(pod)
	s.refused.put(pod, refused.Union(sets.KeySet(d.victims)))
	return d.more
}

// Denied notes that the API server refuses evictions on a node for a pod, and ends what Hold began there without trying the pod at once.
// Unlike what preemption refused, it is known until all nodes have been tried: devices are held before the API server answers.
func (s *Shared) Denied(pod types.UID, node string) {
	denied, _ := s.denied.get(pod)
	s.denied.put(pod, denied.Union(sets.New(node)))
	s.drop(pod, pod, false)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
