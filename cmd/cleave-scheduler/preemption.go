// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// devicePreemption is the name of the plugin that evicts pods for others that need their devices. It replaces DefaultPreemption in a
// profile with GPUPacking and CandidateDynamicResources.
const devicePreemption = "DevicePreemption"

// preemptionPlugin is DefaultPreemption with other victims. Which pods make room on which node GPUPacking says; kube-scheduler's own
// Evaluator and Executor nominate the node and evict them.
type preemptionPlugin struct {
	*defaultpreemption.DefaultPreemption
	*plugins
	handle   framework.Handle
	rules    *gpupacking.Rules
	later    *later
	refusals refusals
}

// newPreemption creates the plugin of a profile.
func (all *plugins) newPreemption(ctx context.Context, arguments runtime.Object, handle framework.Handle) (framework.Plugin, error) {
	rules := &gpupacking.Rules{}
	if err := gpupacking.DecodeArgs(arguments, rules); err != nil {
		return nil, fmt.Errorf("decode the arguments of %s: %w", devicePreemption, err)
	}
	if err := rules.Validate(); err != nil {
		return nil, fmt.Errorf("check the arguments of %s: %w", devicePreemption, err)
	}
	versioned, args := &configv1.DefaultPreemptionArgs{}, &config.DefaultPreemptionArgs{}
	scheme.Scheme.Default(versioned)
	if err := scheme.Scheme.Convert(versioned, args, nil); err != nil {
		return nil, fmt.Errorf("start %s: %w", devicePreemption, err)
	}
	inner, err := defaultpreemption.New(ctx, args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", devicePreemption, err)
	}
	p := &preemptionPlugin{DefaultPreemption: inner, plugins: all, handle: handle, rules: rules, later: newLater(handle)}
	if len(rules.MinRuntime) > 0 {
		inner.IsEligiblePod = func(_ framework.NodeInfo, victim preemption.Victim, preemptor *corev1.Pod) bool {
			return p.evictable(victim, preemptor)
		}
	}
	p.refusals.watch(inner.Executor)
	all.shared.Preempts(handle.ProfileName(), rules)
	registerMetrics()
	go p.later.run(ctx)
	return p, nil
}

// Name is that of the plugin.
func (p *preemptionPlugin) Name() string { return devicePreemption }

// retryGated is after what a pod that is kept out of the queue is tried again.
const retryGated = 200 * time.Millisecond

// PreEnqueue keeps a pod out of the queue while its victims are being deleted, as DefaultPreemption does. A pod that an event queues
// meanwhile is let in by events of this plugin alone (moveEntitiesToActiveOrBackoffQueue of kube-scheduler 1.37): the deletion of a
// pod, which is none for a pod that waits for a claim. So it is tried again. It must not call the queue, which calls with its lock.
func (p *preemptionPlugin) PreEnqueue(ctx context.Context, pod *corev1.Pod) *framework.Status {
	status := p.DefaultPreemption.PreEnqueue(ctx, pod)
	if !status.IsSuccess() {
		p.later.set(pod, time.Now().Add(retryGated))
	}
	return status
}

// PostFilter finds pods whose eviction makes room for a pod that found none. For one without claims it is that of DefaultPreemption.
func (p *preemptionPlugin) PostFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	statuses framework.NodeToStatusReader) (*framework.PostFilterResult, *framework.Status) {
	devices := p.allocator(p.handle.ProfileName())
	if devices == nil || state.GetSkipFilterPlugins().Has(candidateResources) {
		p.shared.Refused(state, pod.UID) // nobody goes for devices
		return p.DefaultPreemption.PostFilter(ctx, state, pod, statuses)
	}
	a := &attempt{preemptionPlugin: p, devices: devices, state: state, refusedOn: p.refusals.take(pod.UID), found: map[string]room{}}
	if ok, why := a.mayEvict(pod); !ok {
		return nil, framework.NewStatus(framework.Unschedulable, "preemption: "+why)
	}
	if node, waits := a.waits(ctx, pod); waits {
		preemptions.WithLabelValues(outcomeWaiting).Inc()
		why := "preemption: the devices of pods that have gone from node " + node + " are not deallocated yet"
		if node == pod.Status.NominatedNodeName {
			return nil, framework.NewStatus(framework.Unschedulable, why)
		}
		return scheduler.NewPostFilterResultWithNominatedNode(node), framework.NewStatus(framework.Success, why)
	}
	if none, status := a.refused(ctx, pod); status != nil {
		return none, status
	}
	evaluator := preemption.NewEvaluator(devicePreemption, p.handle, a, p.Executor)
	result, status := evaluator.Preempt(ctx, state, pod, fewNodes{statuses, p.shared, state})
	a.done(ctx, pod, result, status)
	if text := status.Message(); text != "" {
		status = framework.NewStatus(status.Code(), "preemption: "+text)
	}
	return result, status
}

// attempt is the search for one pod.
type attempt struct {
	*preemptionPlugin
	devices *candidatePlugin
	state   framework.CycleState
	// refusedOn is the node where the API server refused the last eviction for the pod; empty for none.
	refusedOn string

	mutex sync.Mutex
	found map[string]room // by node
}

// room is what evictions on a node make.
type room struct {
	victims []*corev1.Pod
	units   int
	// devices are what the pod gets then, change what is released for that.
	devices []gpupacking.Result
	change  gpupacking.Change
}

// waits reports whether a pod has room on a node once the claims of pods that are gone are deallocated, which takes a moment: on the node
// that it is nominated for, or on one where nobody has to be evicted. They may have been deallocated since the pod was refused there: the
// event queues it again.
func (a *attempt) waits(ctx context.Context, pod *corev1.Pod) (name string, waits bool) {
	for _, name := range a.shared.Awaited(a.state, pod, a.devices.allocates(a.state)) {
		if a.waitsFor(ctx, pod, name) {
			return name, true
		}
	}
	return "", false
}

// waitsFor is waits for one node.
func (a *attempt) waitsFor(ctx context.Context, pod *corev1.Pod, name string) bool {
	node, err := a.handle.SnapshotSharedLister().NodeInfos().Get(name)
	if err != nil {
		return false
	}
	nobody := &removed{pods: map[types.UID]*corev1.Pod{}}
	got, status := a.devices.whatIf.allocate(ctx, pod, node, a.shared.Without(pod, name, a.devices.ends(node, nobody.pods)))
	if !status.IsSuccess() || len(got) == 0 {
		return false
	}
	if a.devices.allocates(a.state) { // otherwise GPUPacking ended the attempt, and other plugins know nothing of the pod
		state := a.state.Clone()
		state.Write(removedKey, nobody)
		if !a.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node).IsSuccess() {
			return false
		}
	}
	a.shared.Hold(pod, name, got, nil)
	return true
}

// done acts on the result: what a pod is to get is kept for it, and everybody is told.
func (a *attempt) done(ctx context.Context, pod *corev1.Pod, result *framework.PostFilterResult, status *framework.Status) {
	if !status.IsSuccess() || result == nil || result.NominatingInfo == nil || result.NominatedNodeName == "" {
		outcome := outcomeNone
		if status.Code() == framework.Error {
			outcome = outcomeError
		}
		preemptions.WithLabelValues(outcome).Inc()
		if result == nil { // it waits for victims that end
			return
		}
		a.shared.Drop(pod.UID) // its nomination is taken away
		if a.shared.Refused(a.state, pod.UID) {
			a.handle.Activate(klog.FromContext(ctx), map[string]*corev1.Pod{pod.Namespace + "/" + pod.Name: pod})
		}
		a.later.add(pod, a.earliest(pod, a.devices.allocates(a.state)))
		return
	}
	node := result.NominatedNodeName
	r := a.found[node]
	outcome := outcomeEvicted
	if len(evicted(r.victims)) == 0 {
		outcome = outcomeWaiting
	}
	preemptions.WithLabelValues(outcome).Inc()
	evictedUnits.Add(float64(r.units))
	a.later.add(pod, firstStuck(r.victims))
	if len(r.devices) == 0 {
		return
	}
	a.shared.Hold(pod, node, r.devices, r.change.Released)
	a.tell(pod, node, r)
}

// mostFound is how many nodes that would do are compared, where GPUPacking cannot say which are the best.
const mostFound = 8

// GetOffsetAndNumCandidates is with which of the nodes that may be tried to begin, and how many that would do are enough.
func (a *attempt) GetOffsetAndNumCandidates(nodes int32) (offset, most int32) {
	if gpupacking.Candidates(a.state) != nil || gpupacking.Compared(a.state) != nil {
		return 0, nodes
	}
	return 0, min(nodes, mostFound)
}

// PodEligibleToPreemptOthers reports whether a pod may evict others: not if its policy forbids it, or while pods that were evicted on the
// node that it is nominated for end.
func (a *attempt) PodEligibleToPreemptOthers(_ context.Context, pod *corev1.Pod, status *framework.Status) (ok bool, why string) {
	if ok, why := a.mayEvict(pod); !ok {
		return false, why
	}
	if pod.Status.NominatedNodeName == "" || status.Code() == framework.UnschedulableAndUnresolvable {
		return true, ""
	}
	node, err := a.handle.SnapshotSharedLister().NodeInfos().Get(pod.Status.NominatedNodeName)
	if err != nil {
		return true, ""
	}
	now := time.Now()
	for _, i := range node.GetPods() {
		victim := i.GetPod()
		if preemption.PodTerminatingByPreemption(victim) && pools.Leaves(victim, now) &&
			schedulinghelpers.PodPriority(victim) <= schedulinghelpers.PodPriority(pod) {
			a.later.add(pod, pools.StuckAt(victim)) // when it is not waited for any longer
			return false, "not eligible due to a terminating pod on the nominated node."
		}
	}
	return true, ""
}

// victimOrder is the order in which victims are spared: those that GPUPacking would spare, and those that end by themselves last.
func victimOrder(all []*preemption.DomainVictim, chosen sets.Set[types.UID]) {
	rank := func(v *preemption.DomainVictim) int {
		switch pods := v.Pods(); {
		case pods[0].GetPod().DeletionTimestamp != nil:
			return 2
		case hasOne(v, chosen):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b *preemption.DomainVictim) int {
		x, y := rank(a), rank(b)
		switch {
		case x == 2 || y == 2:
			return cmp.Compare(x, y)
		case a.Priority() != b.Priority():
			return cmp.Compare(b.Priority(), a.Priority())
		case x != y:
			return cmp.Compare(x, y)
		case preemption.MoreImportantVictim(a, b):
			return -1
		case preemption.MoreImportantVictim(b, a):
			return 1
		}
		return 0
	})
}

// hasOne reports whether one of some pods goes with a victim.
func hasOne(v *preemption.DomainVictim, pods sets.Set[types.UID]) bool {
	return slices.ContainsFunc(v.Pods(), func(i framework.PodInfo) bool { return pods.Has(i.GetPod().UID) })
}

// followed are the pods that GPUPacking has chosen, which knows nothing of groups; not ok where all pods of a group would go with one.
func followed(possible []*preemption.DomainVictim, victims []types.UID) (chosen sets.Set[types.UID], ok bool) {
	chosen = sets.New(victims...)
	if slices.ContainsFunc(possible, func(v *preemption.DomainVictim) bool { return len(v.Pods()) > 1 && hasOne(v, chosen) }) {
		return nil, false
	}
	return chosen, true
}

// SelectVictimsOnNode finds the pods of a node to evict. Those that GPUPacking has chosen are tried first: on a node of 56 partitions it
// takes a run of the allocator for each of the others to find that they can stay.
func (a *attempt) SelectVictimsOnNode(ctx context.Context, state framework.CycleState, preemptor *corev1.Pod, node framework.NodeInfo,
	possible []*preemption.DomainVictim, budgets []*policyv1.PodDisruptionBudget) ([]*corev1.Pod, int, *framework.Status) {
	possible = slices.DeleteFunc(slices.Clone(possible), func(v *preemption.DomainVictim) bool { return !a.evictable(v, preemptor) })
	if len(possible) == 0 {
		return nil, 0, framework.NewStatus(framework.UnschedulableAndUnresolvable, "No preemption victims found for incoming pod")
	}
	name := node.Node().Name
	victims, known := gpupacking.Victims(a.state, name)
	chosen, ok := followed(possible, victims)
	victimOrder(possible, chosen)
	d := &dryRun{attempt: a, preemptor: preemptor}
	if known && ok {
		few := slices.DeleteFunc(slices.Clone(possible), func(v *preemption.DomainVictim) bool {
			return !slices.ContainsFunc(v.Pods(), func(i framework.PodInfo) bool {
				return chosen.Has(i.GetPod().UID) || i.GetPod().DeletionTimestamp != nil
			})
		})
		if found, breaks, status := d.run(ctx, state.Clone(), node.Snapshot(), few, budgets); status.IsSuccess() {
			return found, breaks, nil
		}
	}
	return d.run(ctx, state, node, possible, budgets)
}

// OrderedScoreFuncs compare nodes, the most important first: the fewest evictions that budgets do not allow, the lowest priority of the
// most important victim, the least units lost, the fewest victims, and the shortest time that one has run.
func (a *attempt) OrderedScoreFuncs(_ context.Context, nodes map[string]*extenderv1.Victims) []func(string) int64 {
	return []func(string) int64{
		func(n string) int64 { return -nodes[n].NumPDBViolations },
		func(n string) int64 {
			most := int64(math.MinInt32)
			for _, p := range evicted(nodes[n].Pods) {
				most = max(most, int64(schedulinghelpers.PodPriority(p)))
			}
			return -most
		},
		func(n string) int64 { return -int64(a.found[n].units) },
		func(n string) int64 { return -int64(len(evicted(nodes[n].Pods))) },
		func(n string) int64 {
			first := int64(math.MaxInt64)
			for _, p := range evicted(nodes[n].Pods) {
				if p.Status.StartTime != nil {
					first = min(first, p.Status.StartTime.UnixNano())
				}
			}
			return first
		},
	}
}

// evicted are the victims that do not end anyway.
func evicted(victims []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(victims), func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// firstStuck is when the first of the victims that end anyway is not waited for any longer; zero for none.
func firstStuck(victims []*corev1.Pod) (first time.Time) {
	for _, p := range victims {
		if p.DeletionTimestamp == nil {
			continue
		}
		if at := pools.StuckAt(p); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}
