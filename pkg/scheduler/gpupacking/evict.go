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
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// eviction is pods of a node that can be evicted for another, as far as the measure can say.
type eviction struct {
	node    string
	victims []types.UID
	loss    packing.Loss
	busy    bool // the node lacks CPU, memory or pod slots, too
}

// budget is a PodDisruptionBudget.
type budget struct {
	namespace string
	selector  labels.Selector
	disrupted map[string]metav1.Time
}

// evictor finds evictions for a pod.
type evictor struct {
	who     holder
	rules   *Rules
	now     time.Time
	pods    corelisters.PodLister
	budgets []budget
	allowed []int // by budget
}

func newEvictor(pod *corev1.Pod, rules *Rules, pods corelisters.PodLister, all policylisters.PodDisruptionBudgetLister) (*evictor, error) {
	e := &evictor{who: holderOf(pod), rules: rules, now: time.Now(), pods: pods}
	listed, err := all.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(listed, func(a, b *policyv1.PodDisruptionBudget) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, b := range listed {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			continue
		}
		e.budgets = append(e.budgets, budget{b.Namespace, selector, b.Status.DisruptedPods})
		e.allowed = append(e.allowed, int(b.Status.DisruptionsAllowed))
	}
	return e, nil
}

// any reports whether a node has pods that may be evicted, or end by themselves.
func (e *evictor) any(node framework.NodeInfo) bool {
	return slices.ContainsFunc(node.GetPods(), func(i framework.PodInfo) bool {
		pod := i.GetPod()
		own := schedulinghelpers.PodPriority(pod)
		return own < e.who.priority || own == e.who.priority && (pod.DeletionTimestamp != nil || len(e.rules.MaxRuntime) > 0)
	})
}

// budgetsOf are those that cover a pod, by their index.
func (e *evictor) budgetsOf(pod *corev1.Pod) (found []int) {
	for i := range e.budgets {
		b := &e.budgets[i]
		if _, done := b.disrupted[pod.Name]; !done && b.namespace == pod.Namespace && b.selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, i)
		}
	}
	return found
}

// pods of holders.
type victims struct {
	holders []packing.Holder
	pods    [][]*corev1.Pod // by holder
	of      map[types.UID]int
}

// add notes that devices are released if pods end: it joins the holders that have one of them.
func (v *victims) add(uses []packing.Use, pods []*corev1.Pod) {
	at := -1
	for _, p := range pods {
		known, ok := v.of[p.UID]
		switch {
		case !ok || known == at:
		case at < 0:
			at = known
		default: // two that were apart
			v.holders[at].Uses = append(v.holders[at].Uses, v.holders[known].Uses...)
			v.pods[at] = append(v.pods[at], v.pods[known]...)
			for _, moved := range v.pods[known] {
				v.of[moved.UID] = at
			}
			v.holders[known].Uses, v.pods[known] = nil, nil
		}
	}
	if at < 0 {
		at = len(v.holders)
		v.holders, v.pods = append(v.holders, packing.Holder{}), append(v.pods, nil)
	}
	v.holders[at].Uses = append(v.holders[at].Uses, uses...)
	for _, p := range pods {
		if known, ok := v.of[p.UID]; !ok || known != at {
			v.of[p.UID] = at
			v.pods[at] = append(v.pods[at], p)
		}
	}
}

// finish fills in what is known of the pods, and drops holders that were joined to others.
func (v *victims) finish(e *evictor) {
	var holders []packing.Holder
	var pods [][]*corev1.Pod
	for i := range v.holders {
		if len(v.pods[i]) == 0 {
			continue
		}
		h := v.holders[i]
		h.Priority, h.Since, h.Pods = schedulinghelpers.PodPriority(v.pods[i][0]), startOf(v.pods[i][0]).Unix(), len(v.pods[i])
		for _, p := range v.pods[i] {
			h.Priority = max(h.Priority, schedulinghelpers.PodPriority(p))
			h.Since = min(h.Since, startOf(p).Unix())
			h.Budgets = append(h.Budgets, e.budgetsOf(p)...)
		}
		holders, pods = append(holders, h), append(pods, v.pods[i])
	}
	v.holders, v.pods = holders, pods
}

// evict finds the least loss for a demand on a node; not ok where none makes room, or the measure has no say.
func (c *cluster) evict(ctx context.Context, q query, node framework.NodeInfo, e *evictor) (found eviction, ok bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	name := node.Node().Name
	v := c.decisive(ctx, name, q)
	if v == nil {
		return eviction{}, false
	}
	released, all := c.victimsOn(v, node, e)
	holds := c.holdsOn(name, q.holder)
	sum := all.sum(released, e.allowed)
	if known, ok := v.evictions[q.demand.Key]; ok && len(holds) == 0 && known.sum == sum {
		return known.eviction, known.ok
	}
	state := c.without(v, released)
	c.keep(v, state, holds, released)
	requests, err := c.cache.Requests(ctx, v.node, q.demand)
	if err != nil {
		return eviction{}, false
	}
	chosen, loss, fits, err := state.Evict(all.holders, e.allowed, requests...)
	ok = err == nil && fits
	found = eviction{node: name, loss: loss}
	for _, i := range chosen {
		for _, p := range all.pods[i] {
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

// sum stands for all that an eviction depends on besides the allocations of a view.
func (v *victims) sum(released map[types.UID]bool, allowed []int) uint64 {
	var h maphash.Hash
	h.SetSeed(sumSeed)
	for _, uid := range slices.Sorted(maps.Keys(released)) {
		maphash.WriteComparable(&h, uid)
	}
	for i := range v.holders {
		maphash.WriteComparable(&h, [2]int64{int64(v.holders[i].Priority), v.holders[i].Since})
		for _, b := range v.holders[i].Budgets {
			maphash.WriteComparable(&h, [2]int{b, allowed[b]})
		}
		for _, p := range v.pods[i] {
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

// decisive is the view of a node whose devices decide about a demand; nil where there is none.
func (c *cluster) decisive(ctx context.Context, name string, q query) (found *view) {
	if p, passed := c.planOn(ctx, name, q); passed != "" || !p.complete {
		return nil
	}
	for _, v := range c.views[name] {
		if c.plan(ctx, v, q).matches {
			found = v
		}
	}
	return found
}

// victimsOn are the claims of a view that are released anyway, and the holders of those that eviction releases.
func (c *cluster) victimsOn(v *view, node framework.NodeInfo, e *evictor) (released map[types.UID]bool, all *victims) {
	here := map[types.UID]*corev1.Pod{}
	for _, p := range node.GetPods() {
		here[p.GetPod().UID] = p.GetPod()
	}
	released, all = map[types.UID]bool{}, &victims{of: map[types.UID]int{}}
	for _, claim := range c.claimsOf(v) {
		pods, stays := e.endsWith(claim, here)
		switch {
		case stays:
		case len(pods) == 0:
			released[claim.UID] = true
		default:
			all.add(v.node.Uses(results(claim)), pods)
		}
	}
	all.finish(e)
	return released, all
}

// endsWith are the pods that must be evicted for a claim to be released; none where its consumers end by themselves.
func (e *evictor) endsWith(claim *resourceapi.ResourceClaim, here map[types.UID]*corev1.Pod) (pods []*corev1.Pod, stays bool) {
	all, ok := consumers(claim)
	if !ok {
		return nil, true
	}
	for _, r := range all {
		pod := here[r.UID]
		switch {
		case pod == nil && Gone(e.pods, claim.Namespace, r.Name, r.UID):
		case pod == nil:
			return nil, true
		default:
			own := schedulinghelpers.PodPriority(pod)
			may, _ := e.rules.Evictable(pod, own, e.who.priority, e.now)
			switch {
			case pod.DeletionTimestamp == nil && may:
				pods = append(pods, pod)
			case own > e.who.priority || !Leaves(pod, e.now):
				return nil, true
			}
		}
	}
	return pods, false
}

// evictions are the nodes on which pods can be evicted for one that has no room, those of the least loss first.
// Where nodes have room on their GPUs and lack only CPU, memory or pod slots, those count where somebody has to go for devices.
func (p *Plugin) evictions(ctx context.Context, pod *corev1.Pod, among eligible, q query, onlyVictims bool) []eviction {
	rules := p.shared.rulesOf(p.handle.ProfileName())
	if rules == nil || pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return nil
	}
	informers := p.handle.SharedInformerFactory()
	e, err := newEvictor(pod, rules, informers.Core().V1().Pods().Lister(), informers.Policy().V1().PodDisruptionBudgets().Lister())
	if err != nil {
		return nil // informers do not fail
	}
	nodes := p.handle.SnapshotSharedLister().NodeInfos()
	var found []eviction
	for i, names := range [][]string{among.free, among.busy} {
		for _, name := range names {
			node, err := nodes.Get(name)
			if err != nil {
				continue
			}
			if !e.any(node) {
				continue
			}
			if one, ok := p.cluster.evict(ctx, q, node, e); ok && (!onlyVictims || len(one.victims) > 0) {
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

// addEvictions leaves the best nodes on which others may be evicted to the allocator and to preemption. Where they would not do in
// earlier attempts, those that are next come.
// It reports whether they have all come before.
func (p *Plugin) addEvictions(ctx context.Context, pod *corev1.Pod, among eligible, d *decision) (again bool) {
	found := p.evictions(ctx, pod, among, d.query, d.outcome == outcomeBusy)
	if len(found) == 0 {
		return false
	}
	offered, _ := p.offered.get(pod.UID)
	rest := slices.DeleteFunc(slices.Clone(found), func(e eviction) bool { return offered.Has(e.node) })
	again = len(rest) == 0
	holds := p.cluster.holdOf(pod.UID)
	if again || holds {
		rest, offered = found, nil
	}
	d.victims = map[string][]types.UID{}
	all := offered.Clone()
	if all == nil {
		all = sets.New[string]()
	}
	for _, e := range rest[:min(len(rest), p.args.Candidates)] {
		d.victims[e.node] = e.victims
		all.Insert(e.node)
	}
	d.more = len(rest) > p.args.Candidates && !again && !holds
	p.offered.put(pod.UID, all)
	if d.outcome != outcomeBusy {
		d.outcome = outcomeEvict
	}
	p.waiting.put(pod.UID, waiter{d.query, pod})
	return again
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
