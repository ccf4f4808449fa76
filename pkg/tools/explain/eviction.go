// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Running are the pods of the cluster, for whom could be evicted.
type Running struct {
	Now     time.Time
	Pods    []*corev1.Pod
	Budgets []*policyv1.PodDisruptionBudget
	// PodsUnread and BudgetsUnread are why one of them is not known.
	PodsUnread, BudgetsUnread error
}

// Waits reports whether a question is about a pod without a node, for which others could be evicted. The priority of one that is not
// created is not known.
func (q *Question) Waits() bool { return q.pod != nil && q.scheduled == "" && !q.planned }

// AsksPods reports whether other pods say something about the question: who could be evicted, and which schedulers there are.
func (q *Question) AsksPods() bool {
	return q.Waits() || q.planned && !slices.Contains([]string{"", corev1.DefaultSchedulerName}, q.pod.Spec.SchedulerName)
}

// room is what evictions on a node come to.
type room struct {
	node    string
	victims []Victim
	loss    packing.Loss
}

// evictions look for pods of a lower priority whose devices a pod needs. The search is the scheduler's.
type evictions struct {
	*search
	priority int32
	demand   pools.Demand
	cache    *pools.Cache
	budgets  *pools.Budgets
	pods     map[types.UID]*corev1.Pod
	claims   map[resourcepool.ID][]*resourceapi.ResourceClaim
	// found are the nodes where evictions make room, causes why they do not on others.
	found  []room
	causes causes
	// lower is set if pods of a lower priority have devices of the right kind.
	lower bool
}

// eviction says who could be evicted for the pod of a question; nil where nobody is looked for.
func (s *search) eviction(ctx context.Context) *Eviction {
	pod := s.question.pod
	if !s.question.Waits() || s.Running == nil || len(s.open) == 0 || ctx.Err() != nil {
		return nil
	}
	e := &Eviction{Priority: schedulinghelpers.PodPriority(pod), Scheduler: pod.Spec.SchedulerName}
	all, cause := s.newEvictions(e.Priority)
	if cause != nil {
		e.Causes = causes{cause}.finish(0)
		return e
	}
	for _, site := range s.open {
		if ctx.Err() != nil {
			all.causes.add(Cause{Kind: EvictionUnknown, name: "the search of the nodes took too long"})
			break
		}
		all.on(ctx, site)
	}
	all.answer(e)
	return e
}

// newEvictions prepares a search, or says why there is none.
func (s *search) newEvictions(priority int32) (*evictions, *Cause) {
	policy := s.question.pod.Spec.PreemptionPolicy
	switch {
	case policy != nil && *policy == corev1.PreemptNever:
		return nil, &Cause{Kind: PreemptsNever}
	case s.question.pod.Spec.SchedulingGroup != nil:
		return nil, &Cause{Kind: PodGroupMember}
	case s.Running.PodsUnread != nil:
		return nil, &Cause{Kind: EvictionUnknown, name: s.Running.PodsUnread.Error()}
	case len(s.claims) < len(s.question.claims):
		return nil, &Cause{Kind: EvictionUnknown, name: "some of the pod's claims have devices already"}
	}
	var specs []*resourceapi.ResourceClaimSpec
	for _, claim := range s.claims {
		specs = append(specs, &claim.Spec)
	}
	demand, err := pools.NewDemand(s.Classes.Get, specs...)
	if err != nil {
		return nil, &Cause{Kind: EvictionUnknown, name: err.Error()}
	}
	e := &evictions{search: s, priority: priority, demand: demand, cache: pools.NewCache(), budgets: pools.NewBudgets(s.Running.Budgets),
		pods: map[types.UID]*corev1.Pod{}, claims: map[resourcepool.ID][]*resourceapi.ResourceClaim{}}
	for _, p := range s.Running.Pods {
		e.pods[p.UID] = p
	}
	for _, claim := range s.Claims {
		var ids []resourcepool.ID
		for _, r := range resultsOf(claim) {
			if id := (resourcepool.ID{Driver: r.Driver, Pool: r.Pool}); !slices.Contains(ids, id) {
				ids = append(ids, id)
				e.claims[id] = append(e.claims[id], claim)
			}
		}
	}
	return e, nil
}

func resultsOf(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return claim.Status.Allocation.Devices.Results
}

// answer is the best node, or why there is none.
func (e *evictions) answer(to *Eviction) {
	if len(e.found) == 0 {
		if slices.ContainsFunc(e.causes, func(c *Cause) bool { return c.Kind != NotEnough }) { // a node has such devices
			e.causes = slices.DeleteFunc(e.causes, func(c *Cause) bool { return c.Kind == NotEnough })
		}
		for _, c := range e.causes {
			if c.Kind == NotLower && e.lower {
				c.name = "others would be evicted"
			}
		}
		to.Causes = e.causes.finish(0)
		return
	}
	slices.SortStableFunc(e.found, func(a, b room) int {
		return cmp.Or(cmp.Compare(min(len(a.victims), 1), min(len(b.victims), 1)), a.loss.Compare(b.loss), cmp.Compare(a.node, b.node))
	})
	best := e.found[0]
	to.Node, to.Victims, to.NotAllowed, to.OtherNodes = best.node, best.victims, best.loss.Breaks, len(e.found)-1
}

// on looks at a node.
func (e *evictions) on(ctx context.Context, site *site) {
	node, requests, cause := e.deciding(ctx, site)
	if cause != nil {
		e.causes.add(*cause)
		return
	}
	unknown := func(err error) { e.causes.add(Cause{Kind: EvictionUnknown, name: err.Error()}) }
	state, empty := node.NewState(), node.NewState()
	if _, fits, err := empty.Fit(requests...); err != nil {
		unknown(err)
		return
	} else if !fits {
		e.causes.add(Cause{Kind: NotEnough})
		return
	}
	h := e.holders(site, node, state, requests)
	chosen, loss, fits, err := state.Evict(h.All, e.budgets.Allowed, requests...)
	switch {
	case err != nil:
		unknown(err)
	case !fits && len(h.stay) == 0:
		unknown(fmt.Errorf("look at node %s: %w", site.node.Name, pools.ErrUnpredictable))
	case !fits:
		for _, c := range h.stay {
			e.causes.add(*c)
		}
		e.lower = e.lower || h.lower
	case len(chosen) == 0 && !h.released:
		unknown(fmt.Errorf("look at node %s: %w", site.node.Name, pools.ErrUnpredictable))
	default:
		found := room{node: site.node.Name, loss: loss}
		for _, i := range chosen {
			for _, p := range h.Pods[i] {
				found.victims = append(found.victims, Victim{Pod: p.Namespace + "/" + p.Name, Priority: schedulinghelpers.PodPriority(p),
					Devices: h.devices[p.UID]})
			}
		}
		e.found = append(e.found, found)
	}
}

// deciding is the node as one driver publishes it, if its devices decide about the demand, or why that is not so.
func (e *evictions) deciding(ctx context.Context, site *site) (found *pools.Node, requests []packing.Request, cause *Cause) {
	byDriver := map[string][]*resourceapi.ResourceSlice{}
	var drivers []string
	elsewhere := map[string]bool{} // drivers with devices that the node shares with others
	for _, s := range slices.Concat(site.slices, site.rest) {
		driver := s.Spec.Driver
		if s.Spec.NodeName == nil || *s.Spec.NodeName != site.node.Name {
			elsewhere[driver] = true
			continue
		}
		if byDriver[driver] == nil {
			drivers = append(drivers, driver)
		}
		byDriver[driver] = append(byDriver[driver], s)
	}
	unknown := func(why string) *Cause { return &Cause{Kind: EvictionUnknown, name: why} }
	complete := false
	for _, driver := range drivers {
		node, err := e.cache.Node(byDriver[driver])
		if err != nil {
			continue // the allocator takes nothing from it either
		}
		all, err := e.cache.Requests(ctx, node, e.demand)
		if err != nil {
			return nil, nil, unknown(err.Error())
		}
		some := slices.ContainsFunc(all, func(r packing.Request) bool { return r.Any() })
		switch {
		case !some:
			continue
		case found != nil || elsewhere[driver]:
			return nil, nil, unknown("the devices are of several drivers or nodes")
		}
		complete = !slices.ContainsFunc(all, func(r packing.Request) bool { return !r.Any() })
		found, requests = node, all
	}
	switch {
	case complete:
		return found, requests, nil
	case len(elsewhere) > 0:
		return nil, nil, unknown("the devices may be of several drivers or nodes")
	}
	return nil, nil, &Cause{Kind: NotEnough}
}

// holders are those of a node whose devices eviction releases, and what stays.
type holders struct {
	*pools.Holders
	devices map[types.UID][]string // by pod
	// released is set if pods leave devices anyway.
	released bool
	stay     causes
	lower    bool
}

// holders allocates what is allocated, without what pods leave anyway.
func (e *evictions) holders(site *site, node *pools.Node, state *packing.State, requests []packing.Request) *holders {
	h := &holders{Holders: pools.NewHolders(), devices: map[types.UID][]string{}}
	evicting := e.from(site.node.Name)
	for _, claim := range e.claimsOn(site, node) {
		uses := node.Uses(resultsOf(claim))
		end := evicting.EndOf(claim)
		switch {
		case end.Stays == "" && len(end.Evict) == 0:
			h.released = true
			continue
		case end.Stays == "":
			h.Add(uses, end.Evict)
			h.lower = h.lower || competes(node.Model, uses, requests)
			for _, p := range end.Evict {
				for _, u := range uses {
					if name := node.Model.Devices[u.Device].Name; !slices.Contains(h.devices[p.UID], name) {
						h.devices[p.UID] = append(h.devices[p.UID], name)
					}
				}
			}
		case competes(node.Model, uses, requests):
			h.stay.add(e.whyStays(claim, end, evicting))
		}
		state.Allocate(uses...)
	}
	h.Complete(e.budgets)
	return h
}

func (e *evictions) from(node string) *pools.Evicting {
	return &pools.Evicting{
		Priority: e.priority, Now: e.Running.Now,
		May: func(pod *corev1.Pod) bool { return schedulinghelpers.PodPriority(pod) < e.priority },
		Find: func(_, _ string, uid types.UID) (*corev1.Pod, bool) {
			pod := e.pods[uid]
			if pod == nil || pod.Spec.NodeName != node {
				return nil, pod == nil
			}
			return pod, false
		},
	}
}

// claimsOn are the claims with devices of a node, in the scheduler's order.
func (e *evictions) claimsOn(site *site, node *pools.Node) (found []*resourceapi.ResourceClaim) {
	for _, p := range site.pools {
		if p.Driver != node.Driver {
			continue
		}
		for _, claim := range e.claims[p.ID] {
			if !slices.Contains(found, claim) {
				found = append(found, claim)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b *resourceapi.ResourceClaim) int { return cmp.Compare(a.UID, b.UID) })
	return found
}

// competes reports whether an allocation is on a GPU that has devices of the right kind.
func competes(m *packing.Model, uses []packing.Use, requests []packing.Request) bool {
	on := map[int]bool{}
	for _, u := range uses {
		on[m.Devices[u.Device].GPU] = true
	}
	for i := range m.Devices {
		if on[m.Devices[i].GPU] && slices.ContainsFunc(requests, func(r packing.Request) bool { return r.Matches(i) }) {
			return true
		}
	}
	return false
}

// whyStays is why nobody's eviction releases a claim.
func (e *evictions) whyStays(claim *resourceapi.ResourceClaim, end pools.End, evicting *pools.Evicting) Cause {
	c := Cause{Claims: []Use{useOf(claim, nil)}, want: int64(e.priority)}
	switch end.Stays {
	case pools.StaysUnused:
		c.Kind = UnusedClaim
	case pools.StaysForeign:
		c.Kind = ForeignClaim
	case pools.StaysElsewhere:
		c.Kind = ElsewhereClaim
	default:
		own := schedulinghelpers.PodPriority(end.With)
		consumers, _ := pools.Consumers(claim)
		shared := slices.ContainsFunc(consumers, func(r resourceapi.ResourceClaimConsumerReference) bool {
			pod, _ := evicting.Find(claim.Namespace, r.Name, r.UID)
			return pod != nil && evicting.May(pod)
		})
		switch {
		case end.With.DeletionTimestamp != nil && own <= e.priority:
			c.Kind = StuckPod
		case shared:
			c.Kind = SharedClaim
		default:
			c.Kind, c.least, c.most = NotLower, int64(own), int64(own)
		}
	}
	return c
}
