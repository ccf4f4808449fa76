// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/packing"
	"github.com/cleave-dra/cleave/pkg/pools"
)

// Name is that of the plugin in a KubeSchedulerConfiguration.
const Name = "GPUPacking"

// Plugin is GPUPacking.
type Plugin struct {
	handle  framework.Handle
	dra     framework.SharedDRAManager
	args    Args
	cluster *cluster
	synced  []cache.InformerSynced
	ready   atomic.Bool // all of synced
	// unnarrowed are pods whose next attempt sees all nodes, full those that had no room, warned those whose annotation was
	// reported.
	unnarrowed, full, warned remembered
}

var (
	_ framework.PreFilterPlugin   = (*Plugin)(nil)
	_ framework.PostFilterPlugin  = (*Plugin)(nil)
	_ framework.ScorePlugin       = (*Plugin)(nil)
	_ framework.ReservePlugin     = (*Plugin)(nil)
	_ framework.SignPlugin        = (*Plugin)(nil)
	_ framework.EnqueueExtensions = (*Plugin)(nil)
)

// New creates the plugin. Unknown arguments are an error.
func New(_ context.Context, arguments runtime.Object, handle framework.Handle) (framework.Plugin, error) {
	args, err := parseArgs(arguments)
	if err != nil {
		return nil, err
	}
	if handle.SharedDRAManager() == nil {
		return nil, fmt.Errorf("start %s: dynamic resource allocation is off", Name)
	}
	p := &Plugin{handle: handle, dra: handle.SharedDRAManager(), args: args, cluster: newCluster()}
	if p.synced, err = watch(p.cluster, handle.SharedInformerFactory()); err != nil {
		return nil, fmt.Errorf("start %s: %w", Name, err)
	}
	register()
	return p, nil
}

// Name is that of the plugin.
func (p *Plugin) Name() string { return Name }

// fullAttempts is after how many attempts that found no room the allocator is asked on all nodes. The measure and the
// allocator agree; should they ever not, no pod waits for ever.
const fullAttempts = 10

// stateKey is that of a decision in the state of a scheduling cycle.
const stateKey framework.StateKey = Name

// decision is what was decided for a pod in a cycle.
type decision struct {
	strategy packing.Strategy
	narrowed bool
	ranks    map[string]int // by node, the best is 0
	costs    map[string]packing.Cost
}

// Clone returns the decision itself: it does not change.
func (d *decision) Clone() framework.StateData { return d }

// read is the decision of a cycle; nil where there is none.
func read(state framework.CycleState) *decision {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil
	}
	d, _ := data.(*decision)
	return d
}

// PreFilter narrows the search to the best nodes. It skips what is not for GPUs that are packed.
func (p *Plugin) PreFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	nodes []framework.NodeInfo) (*framework.PreFilterResult, *framework.Status) {
	skip := framework.NewStatus(framework.Skip)
	if !p.ready.Load() {
		if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
			return nil, framework.AsStatus(context.Cause(ctx))
		}
		p.ready.Store(true)
	}
	specs, passed, err := p.demandOf(pod, nodes)
	if err != nil || passed == "" && len(specs) == 0 {
		return nil, skip // what is wrong with claims, DynamicResources reports
	}
	strategy := p.strategyOf(pod, specs)
	if passed == "" && state.IsPodGroupSchedulingCycle() {
		passed = passedGroup
	}
	var demand pools.Demand
	if passed == "" {
		demand, err = pools.NewDemand(p.dra.DeviceClasses().Get, specs...)
		if errors.Is(err, pools.ErrUnforeseen) {
			passed = passedUnforeseen
		} else if err != nil {
			return nil, skip
		}
	}
	if passed != "" {
		attempts.WithLabelValues(string(strategy), passed).Inc()
		return nil, skip
	}
	return p.narrow(ctx, state, pod, nodes, demand, strategy)
}

func (p *Plugin) narrow(ctx context.Context, state framework.CycleState, pod *corev1.Pod, nodes []framework.NodeInfo,
	demand pools.Demand, strategy packing.Strategy) (*framework.PreFilterResult, *framework.Status) {
	logger, start := klog.FromContext(ctx), time.Now()
	names := eligible(logger, pod, nodes)
	most := p.args.Candidates
	fallback := p.unnarrowed.remove(pod.UID)
	if fallback {
		most = len(nodes)
	}
	found := p.cluster.choose(ctx, demand, names, strategy, max(1, most), p.args.Drivers)
	nodesConsidered.Observe(float64(len(names)))
	choiceSeconds.Observe(time.Since(start).Seconds())
	d := &decision{strategy: strategy, ranks: map[string]int{}, costs: map[string]packing.Cost{}}
	for i, c := range found.best {
		d.ranks[c.node], d.costs[c.node] = i, c.cost
	}
	state.Write(stateKey, d)
	outcome := outcomeNarrowed
	switch {
	case found.passed != "":
		outcome = found.passed
	case fallback:
		outcome = outcomeFallback
	case len(found.best) == 0:
		outcome = outcomeFull
		if p.full.add(pod.UID)%fullAttempts == 0 {
			p.unnarrowed.add(pod.UID)
		}
	}
	attempts.WithLabelValues(string(strategy), outcome).Inc()
	logger.V(4).Info("Compared nodes by their GPUs", "pod", klog.KObj(pod), "strategy", strategy, "outcome", outcome,
		"nodes", len(names), "best", sortedKeys(d.ranks))
	switch outcome {
	case outcomeNarrowed:
		d.narrowed = true
		return &framework.PreFilterResult{NodeNames: sets.KeySet(d.ranks)}, nil
	case outcomeFull:
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable,
			fmt.Sprintf("none of %d nodes has room on its GPUs for the pod's claims", len(names)))
	default:
		return nil, framework.NewStatus(framework.Skip)
	}
}

// PreFilterExtensions are none: what other pods do to a node does not change its devices.
func (p *Plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

// PostFilter lets a pod try all nodes at once if none of the best would do. Success keeps other plugins from evicting pods
// for it meanwhile.
func (p *Plugin) PostFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	_ framework.NodeToStatusReader) (*framework.PostFilterResult, *framework.Status) {
	d := read(state)
	if d == nil || !d.narrowed {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	p.unnarrowed.add(pod.UID)
	logger := klog.FromContext(ctx)
	p.handle.Activate(logger, map[string]*corev1.Pod{pod.Namespace + "/" + pod.Name: pod})
	logger.V(3).Info("None of the best nodes will do, the next attempt sees all", "pod", klog.KObj(pod), "nodes", sortedKeys(d.ranks))
	return nil, framework.NewStatus(framework.Success)
}

// Score is higher the better the node.
func (p *Plugin) Score(_ context.Context, state framework.CycleState, _ *corev1.Pod, node framework.NodeInfo) (int64, *framework.Status) {
	d := read(state)
	if d == nil || node.Node() == nil {
		return 0, nil
	}
	rank, ok := d.ranks[node.Node().Name]
	if !ok {
		return 0, nil
	}
	steps := min(int64(len(d.ranks)), framework.MaxScore)
	return max(0, framework.MaxScore-int64(rank)*(framework.MaxScore/steps)), nil
}

// ScoreExtensions are none.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return nil }

// Reserve counts the devices that DynamicResources chose until the API server has them.
func (p *Plugin) Reserve(_ context.Context, state framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	for i := range pod.Spec.ResourceClaims {
		claim, err := p.claim(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || claim == nil || claim.Status.Allocation != nil {
			continue
		}
		if pending := p.dra.ResourceClaims().GetPendingAllocation(claim.UID); pending != nil {
			p.cluster.assume(claim.UID, pending.Devices.Results)
		}
	}
	if d := read(state); d != nil {
		if cost, ok := d.costs[node]; ok {
			placementLost.WithLabelValues(string(d.strategy)).Observe(float64(cost.Lost))
		}
	}
	return nil
}

// Unreserve undoes Reserve.
func (p *Plugin) Unreserve(_ context.Context, _ framework.CycleState, pod *corev1.Pod, _ string) {
	for i := range pod.Spec.ResourceClaims {
		if claim, err := p.claim(pod, &pod.Spec.ResourceClaims[i]); err == nil && claim != nil {
			p.cluster.assume(claim.UID, nil)
		}
	}
}

// SignPod leaves pods that ask for no devices to be scheduled in batches.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]framework.SignFragment, *framework.Status) {
	if len(pod.Spec.ResourceClaims) > 0 {
		return nil, framework.NewStatus(framework.Unschedulable, "pods with resource claims are not signable")
	}
	return nil, nil
}

// EventsToRegister are those that may give a pod room that had none.
func (p *Plugin) EventsToRegister(context.Context) ([]framework.ClusterEventWithHint, error) {
	var all []framework.ClusterEventWithHint
	for _, e := range []framework.ClusterEvent{
		{Resource: framework.Node,
			ActionType: framework.Add | framework.UpdateNodeLabel | framework.UpdateNodeTaint | framework.UpdateNodeAllocatable},
		{Resource: framework.AssignedPod, ActionType: framework.Delete},
		{Resource: framework.ResourceClaim, ActionType: framework.Add | framework.Update | framework.Delete},
		{Resource: framework.ResourceSlice, ActionType: framework.Add | framework.Update},
		{Resource: framework.DeviceClass, ActionType: framework.Add | framework.Update},
		{Resource: framework.TargetPod, ActionType: framework.UpdatePodGeneratedResourceClaim},
	} {
		all = append(all, framework.ClusterEventWithHint{Event: e})
	}
	return all, nil
}
