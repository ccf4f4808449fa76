// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// Name is that of the plugin in a KubeSchedulerConfiguration.
const Name = "GPUPacking"

// Plugin is GPUPacking.
type Plugin struct {
	shared  *Shared
	handle  framework.Handle
	dra     framework.SharedDRAManager
	args    Args
	cluster *cluster
	ready   atomic.Bool // the cluster has all there was at the start
	checks  checks
	asks    asks
	// unnarrowed are pods whose next attempt sees all nodes, waiting what pods without room look for, released those that did
	// not get their devices in the end.
	unnarrowed, released remembered[struct{}]
	waiting              remembered[waiter]
	// queued is when pods had their first attempt.
	queued firstTimes
}

var (
	_ framework.PreFilterPlugin   = (*Plugin)(nil)
	_ framework.PostFilterPlugin  = (*Plugin)(nil)
	_ framework.PreScorePlugin    = (*Plugin)(nil)
	_ framework.ScorePlugin       = (*Plugin)(nil)
	_ framework.ReservePlugin     = (*Plugin)(nil)
	_ framework.PostBindPlugin    = (*Plugin)(nil)
	_ framework.SignPlugin        = (*Plugin)(nil)
	_ framework.EnqueueExtensions = (*Plugin)(nil)
)

// New makes the plugin of a profile. Unknown arguments are an error.
func (s *Shared) New(ctx context.Context, arguments runtime.Object, handle framework.Handle) (framework.Plugin, error) {
	args, err := parseArgs(arguments)
	if err != nil {
		return nil, err
	}
	if handle.SharedDRAManager() == nil {
		return nil, fmt.Errorf("start %s: dynamic resource allocation is off", Name)
	}
	p := &Plugin{shared: s, handle: handle, dra: handle.SharedDRAManager(), args: args, checks: checks{now: time.Now},
		asks: asks{
			handle: handle, dra: handle.SharedDRAManager(), args: args, stored: newVolumeListers(handle.SharedInformerFactory()),
		}}
	if p.cluster, err = s.clusterOf(ctx, handle); err != nil {
		return nil, fmt.Errorf("start %s: %w", Name, err)
	}
	register()
	p.cluster.holds.addWaker(func(node string, except types.UID, taken bool) { p.wake(ctx, node, except, taken) })
	return p, nil
}

// Name is that of the plugin.
func (p *Plugin) Name() string { return Name }

// stateKey is that of a decision in the state of a scheduling cycle.
const stateKey framework.StateKey = Name

// passedKey is that of a note that the plugin passed the pod of a cycle over, although it asks for devices.
const passedKey framework.StateKey = Name + "/passed"

type passedOver struct{}

// Clone returns the same.
func (p passedOver) Clone() framework.StateData { return p }

// decision is the plugin's for a pod in a cycle.
type decision struct {
	query   query
	among   eligible
	outcome string
	costs   map[string]packing.Cost // of the nodes where it fits
	// victims are the pods whose eviction makes room for it, by node.
	victims map[string][]types.UID
	// more: there are other nodes where an eviction makes room.
	more bool
}

// Victims are the pods whose eviction makes room on a node for the pod of a cycle, as far as GPUPacking can say; not ok where it cannot.
func Victims(state framework.CycleState, node string) (victims []types.UID, ok bool) {
	if d := read(state); d != nil {
		victims, ok = d.victims[node]
	}
	return victims, ok
}

// Clone returns the decision itself: it does not change.
func (d *decision) Clone() framework.StateData { return d }

// nodes are those to which a cycle is narrowed.
func (d *decision) nodes() sets.Set[string] {
	return sets.KeySet(d.costs).Union(sets.KeySet(d.victims))
}

// read is the decision of a cycle; nil where there is none.
func read(state framework.CycleState) *decision {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	d, _ := data.(*decision)
	return d
}

// PreFilter narrows the search to the best nodes. It skips pods that are not for packed GPUs.
func (p *Plugin) PreFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	nodes []framework.NodeInfo) (*framework.PreFilterResult, *framework.Status) {
	skip := framework.NewStatus(framework.Skip)
	if !p.ready.Load() {
		if !cache.WaitFor(ctx, "", p.cluster.synced...) {
			return nil, framework.AsStatus(context.Cause(ctx))
		}
		p.ready.Store(true)
	}
	p.beforeExtended(ctx, state, pod)
	specs, passed, err := p.asks.demand(pod, nodes)
	if err != nil || passed == "" && len(specs) == 0 {
		return nil, skip // DynamicResources reports problems of claims
	}
	strategy := p.asks.strategy(pod, specs)
	if passed == "" && state.IsPodGroupSchedulingCycle() {
		passed = passedGroup
	}
	var demand pools.Demand
	if passed == "" {
		demand, err = pools.NewDemand(p.dra.DeviceClasses().Get, specs...)
		if errors.Is(err, pools.ErrUnpredictable) {
			passed = passedUnpredictable
		} else if err != nil {
			return nil, skip
		}
	}
	if passed != "" {
		attempts.WithLabelValues(string(strategy), passed).Inc()
		state.Write(passedKey, passedOver{})
		return nil, skip
	}
	return p.narrow(ctx, state, pod, nodes, specs, query{holder: holderOf(pod), demand: demand, strategy: strategy,
		most: p.args.Candidates, drivers: p.args.Drivers, class: firstClass(specs)})
}

func (p *Plugin) narrow(ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
	specs []*resourceapi.ResourceClaimSpec, q query) (*framework.PreFilterResult, *framework.Status) {
	logger, start := klog.FromContext(ctx), time.Now()
	among := p.asks.eligibleNodes(logger, pod, nodes)
	if q.strategy == packing.Spread {
		among.replicas = replicasOn(nodes, pod)
	}
	d := &decision{query: q, among: among, costs: map[string]packing.Cost{}}
	best, outcome := p.decide(ctx, pod, d)
	nodesConsidered.Observe(float64(len(among.free)))
	choiceSeconds.Observe(time.Since(start).Seconds())
	for _, c := range best {
		d.costs[c.node] = c.cost
	}
	d.outcome = outcome
	state.Write(stateKey, d)
	attempts.WithLabelValues(string(q.strategy), outcome).Inc()
	p.queued.note(pod.UID, start)
	logger.V(4).Info("Compared nodes by their GPUs", "pod", klog.KObj(pod), "strategy", q.strategy, "outcome", outcome,
		"nodes", len(among.free), "busy", len(among.busy), "best", best[:min(len(best), p.args.Candidates)], "evict", len(d.victims))
	switch outcome {
	case outcomeNarrowed, outcomeBusy, outcomeEvict:
		return &framework.PreFilterResult{NodeNames: d.nodes()}, nil
	case outcomeFull:
		rejections.WithLabelValues(q.class, rejectedBy(ctx, p, among, q, specs)).Inc()
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable, full(among))
	default:
		return nil, framework.NewStatus(framework.Skip)
	}
}

// full says why a pod has to wait.
func full(among eligible) string {
	text := fmt.Sprintf("none of %d nodes has room on its GPUs for the pod's claims", len(among.free)+len(among.busy))
	if among.refused > 0 {
		text += fmt.Sprintf(", and %d are cordoned, tainted, too small, not selected by the pod or out of reach of its volumes", among.refused)
	}
	return text
}

// decide finds the nodes that are left to the allocator, and why it is these.
func (p *Plugin) decide(ctx context.Context, pod *corev1.Pod, d *decision) ([]candidate, string) {
	q := d.query
	p.waiting.remove(pod.UID)
	if p.unnarrowed.remove(pod.UID) {
		return fallBack(ctx, p, pod, d)
	}
	best, outcome := p.look(ctx, d.among, q)
	if (outcome == outcomeBusy || outcome == outcomeFull) && p.cluster.followAll() {
		// The pod may have been queued by an event that the informer's handler has not got to. It comes only once.
		best, outcome = p.look(ctx, d.among, q)
	}
	if outcome == outcomeNarrowed {
		return best, outcome
	}
	wait(p, pod, q) // also where a check follows
	if outcome != outcomeBusy && outcome != outcomeFull {
		return best, outcome
	}
	d.outcome = outcome
	tried := p.addEvictions(ctx, pod, d, p.args.Candidates)
	if d.outcome == outcomeEvict && !tried {
		return nil, outcomeEvict
	}
	// With all nodes in view, preemption evicts on the best of the first few that would do. So it is asked on the best of all before, those
	// that lack only CPU, memory or pod slots, too.
	check := (d.outcome == outcomeFull || tried) && p.checks.due(checkKey(pod, q))
	// A claim for the pod's own extended resources is left where the scheduler ended before it was bound: DynamicResources
	// deletes it.
	if check || p.cluster.extendedClaim(pod) != nil {
		d.victims, d.more = nil, false
		return nil, outcomeChecked
	}
	return best, d.outcome
}

// fallBack leaves all nodes to the allocator. Where other plugins refuse those with room on their GPUs, preemption is asked there and on
// the best of the others, unless it refused all of those.
func fallBack(ctx context.Context, p *Plugin, pod *corev1.Pod, d *decision) ([]candidate, string) {
	all, q := d.among, d.query
	all.free, all.busy, all.groups = slices.Concat(all.free, all.busy), nil, nil
	q.most = max(1, len(all.free))
	best, outcome := p.look(ctx, all, q)
	wait(p, pod, q)
	if outcome != outcomeNarrowed && outcome != outcomeFull {
		return best, outcome
	}
	d.outcome = outcomeFallback
	if p.addEvictions(ctx, pod, d, MostTried/2) { // the others are those with room
		d.victims, d.more = nil, false
	}
	return best, outcomeFallback
}

// wait has the end of a hold wake a pod, if it may fit then.
func wait(p *Plugin, pod *corev1.Pod, q query) {
	p.waiting.put(pod.UID, waiter{q, pod, p.shared.rulesFor(p.handle.ProfileName(), pod)})
}

// look compares nodes. Where none that has CPU, memory and pod slots for the pod has room on its GPUs, it is those that lack
// them: other plugins may evict pods there.
func (p *Plugin) look(ctx context.Context, among eligible, q query) ([]candidate, string) {
	most := q.most
	q.replicas = among.replicas
	if among.groups != nil {
		q.most = max(1, len(among.free))
	}
	free := p.cluster.choose(ctx, q, among.free)
	if len(free.best) > 0 && among.groups != nil {
		return withGroups(free.best, among.groups, most, q.strategy.Compare), outcomeNarrowed
	}
	if len(free.best) > 0 {
		return free.best, outcomeNarrowed
	}
	if free.passed != "" && free.passed != passedNone {
		return nil, free.passed
	}
	q.most = max(1, len(among.busy))
	busy := p.cluster.choose(ctx, q, among.busy)
	switch {
	case len(busy.best) > 0:
		return busy.best, outcomeBusy
	case busy.passed != "" && busy.passed != passedNone:
		return nil, busy.passed
	case free.full || busy.full:
		return nil, outcomeFull
	}
	return nil, passedNone
}

// PreFilterExtensions are none: what other pods do to a node does not change its devices.
func (p *Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

// PostFilter lets a pod try all nodes at once if none of the best would do. Success keeps other plugins from evicting pods
// for it meanwhile.
func (p *Plugin) PostFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	_ framework.NodeToStatusReader) (*framework.PostFilterResult, *framework.Status) {
	d := read(state)
	if d == nil || d.outcome != outcomeNarrowed {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	p.unnarrowed.put(pod.UID, struct{}{})
	logger := klog.FromContext(ctx)
	p.handle.Activate(logger, map[string]*corev1.Pod{pod.Namespace + "/" + pod.Name: pod})
	logger.V(3).Info("None of the best nodes will do, the next attempt sees all", "pod", klog.KObj(pod),
		"nodes", slices.Sorted(maps.Keys(d.costs)))
	return nil, framework.NewStatus(framework.Success)
}

// SignPod leaves pods that ask for no devices to be scheduled in batches.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]framework.SignFragment, *framework.Status) {
	if len(pod.Spec.ResourceClaims) > 0 {
		return nil, framework.NewStatus(framework.Unschedulable, "pods with resource claims are not signable")
	}
	return nil, nil
}
