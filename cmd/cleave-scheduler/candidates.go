// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// candidateResources is the name of this variant of kube-scheduler's plugin DynamicResources: if GPUPacking, whose PreFilter runs
// first, has narrowed the search, its allocator uses only the candidates' devices instead of the cluster's. Devices that are kept for
// pods that others were evicted for count as allocated, and in preemption's dry runs, those of evicted pods as free. Pods that ask for
// admin access alone are not refused for lack of counters. It replaces that plugin in a profile, with the same arguments,
// DynamicResourcesArgs. The name must differ: kube-scheduler rejects a plugin with the name of one of its own.
const candidateResources = "CandidateDynamicResources"

// candidatePlugin is DynamicResources with another name and a PreFilter that may see fewer devices.
type candidatePlugin struct {
	*dynamicresources.DynamicResources
	view   view
	handle framework.Handle
	shared *gpupacking.Shared
	whatIf *whatIf
}

// candidateHandle gives DynamicResources another view of devices and claims.
type candidateHandle struct {
	framework.Handle
	view view
}

func (h candidateHandle) SharedDRAManager() framework.SharedDRAManager { return h.view }

// newCandidates creates the plugin of a profile.
func (all *plugins) newCandidates(ctx context.Context, arguments runtime.Object, handle framework.Handle) (framework.Plugin, error) {
	args, err := dynamicResourcesArgs(arguments)
	if err != nil {
		return nil, fmt.Errorf("decode the arguments of %s: %w", candidateResources, err)
	}
	p := &candidatePlugin{handle: handle, shared: all.shared, view: view{
		&gpupacking.CandidateSlices{SharedDRAManager: handle.SharedDRAManager()},
		&tracker{ResourceClaimTracker: handle.SharedDRAManager().ResourceClaims()},
	}}
	fts := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	if p.DynamicResources, err = newDynamicResources(ctx, args, candidateHandle{handle, p.view}, fts); err != nil {
		return nil, fmt.Errorf("start %s: %w", candidateResources, err)
	}
	if p.whatIf, err = newWhatIf(ctx, args, handle, fts); err != nil {
		return nil, fmt.Errorf("start %s: %w", candidateResources, err)
	}
	all.mutex.Lock()
	defer all.mutex.Unlock()
	all.candidates[handle.ProfileName()] = p
	return p, nil
}

// dynamicResourcesArgs are arguments with kube-scheduler's defaults.
func dynamicResourcesArgs(arguments runtime.Object) (*config.DynamicResourcesArgs, error) {
	versioned := &configv1.DynamicResourcesArgs{}
	if err := gpupacking.DecodeArgs(arguments, versioned); err != nil {
		return nil, err
	}
	scheme.Scheme.Default(versioned)
	args := &config.DynamicResourcesArgs{}
	return args, scheme.Scheme.Convert(versioned, args, nil)
}

// Name is that of the plugin.
func (p *candidatePlugin) Name() string { return candidateResources }

// PostFilter is that of DynamicResources. If another plugin's PreFilter ended the attempt before its own, it has nothing to undo,
// and would fail.
func (p *candidatePlugin) PostFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	statuses framework.NodeToStatusReader) (*framework.PostFilterResult, *framework.Status) {
	if !p.allocates(state) {
		return nil, framework.NewStatus(framework.Unschedulable)
	}
	if err := p.giveUp(ctx, pod); err != nil {
		return nil, framework.AsStatus(err)
	}
	return p.DynamicResources.PostFilter(ctx, state, pod, statuses)
}

// allocates reports whether the plugin has a part in a cycle.
func (p *candidatePlugin) allocates(state framework.CycleState) bool {
	_, err := state.Read(dynamicresources.Name)
	return err == nil
}

// PreFilter is that of DynamicResources.
func (p *candidatePlugin) PreFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	nodes []framework.NodeInfo) (result *framework.PreFilterResult, status *framework.Status) {
	candidates := gpupacking.Candidates(state)
	if candidates == nil {
		candidates = p.view.AdminNodes(pod, nodes)
	}
	if node := pod.Status.NominatedNodeName; candidates != nil && node != "" {
		candidates.Insert(node) // it is tried first, regardless of PreFilter
	}
	if candidates != nil {
		klog.FromContext(ctx).V(4).Info("Limited the allocator to the devices of candidates", "pod", klog.KObj(pod), "nodes", len(candidates))
	}
	p.resolve(ctx)
	p.view.claims.kept = p.shared.Held(state, pod, candidates)
	defer p.view.claims.reset()
	p.view.Limited(pod, candidates, func() {
		result, status = p.DynamicResources.PreFilter(ctx, state, pod, nodes)
	})
	if !status.IsSuccess() {
		return result, status
	}
	if claims, preemptor := p.freed(pod); len(claims) > 0 {
		return nil, framework.NewStatus(framework.UnschedulableAndUnresolvable,
			fmt.Sprintf("pods are evicted with resourceclaim %s for pod %s", klog.KObj(claims[0]), klog.KObj(preemptor)))
	}
	return result, status
}

// resolve finds which devices are to be kept for pods that were nominated before the scheduler started.
func (p *candidatePlugin) resolve(ctx context.Context) {
	for _, n := range p.shared.Unknown(time.Now()) {
		node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(n.Node)
		if err != nil {
			continue
		}
		if devices, status := p.whatIf.allocate(ctx, n.Pod, node, p.shared.Without(n.Pod, n.Node, p.ends(node, nil))); status.IsSuccess() {
			p.shared.Hold(n.Pod, n.Node, devices, nil)
		}
	}
}

// ends says which consumers of claims on a node have ended, or will soon: pods that are gone or end by themselves, and those that a
// dry run removed.
func (p *candidatePlugin) ends(node framework.NodeInfo, gone map[types.UID]*corev1.Pod) func(namespace, name string, uid types.UID) bool {
	here := map[types.UID]*corev1.Pod{}
	for _, i := range node.GetPods() {
		here[i.GetPod().UID] = i.GetPod()
	}
	now, pods := time.Now(), p.handle.SharedInformerFactory().Core().V1().Pods().Lister()
	return func(namespace, name string, uid types.UID) bool {
		switch pod := here[uid]; {
		case gone[uid] != nil:
			return true
		case pod != nil:
			return gone == nil && pools.Leaves(pod, now)
		default:
			return gpupacking.Gone(pods, namespace, name, uid)
		}
	}
}

// removed are the pods by which a dry run of a node differs from the scheduler's view.
type removed struct {
	pods map[types.UID]*corev1.Pod
	// last is the answer for some released claims: most pods that are added back and removed again have none.
	claims string
	last   *framework.Status
}

// Clone returns a copy: each node's dry run has its own.
func (r *removed) Clone() framework.StateData { return &removed{pods: maps.Clone(r.pods)} }

// removedKey is that of the removed pods in the state of a scheduling cycle.
const removedKey framework.StateKey = candidateResources + "/removed"

// removedIn are those of a dry run; nil for none.
func removedIn(state framework.CycleState) *removed {
	data, err := state.Read(removedKey)
	if err != nil {
		return nil
	}
	r, _ := data.(*removed)
	return r
}

// PreFilterExtensions are the plugin's: kube-scheduler's preemption removes pods from a node in a dry run, asks the plugins whether
// the preemptor fits, and adds pods back. DynamicResources takes no part in that (kubernetes/enhancements#5690): here it does.
func (p *candidatePlugin) PreFilterExtensions() framework.PreFilterExtensions { return p }

// AddPod adds a pod back. Those that are nominated for the node are added, too: what is kept for them counts already.
func (p *candidatePlugin) AddPod(_ context.Context, state framework.CycleState, _ *corev1.Pod, add framework.PodInfo,
	_ framework.NodeInfo) *framework.Status {
	if r := removedIn(state); r != nil {
		delete(r.pods, add.GetPod().UID)
	}
	return nil
}

// RemovePod removes a pod.
func (p *candidatePlugin) RemovePod(_ context.Context, state framework.CycleState, _ *corev1.Pod, remove framework.PodInfo,
	_ framework.NodeInfo) *framework.Status {
	r := removedIn(state)
	if r == nil {
		r = &removed{pods: map[types.UID]*corev1.Pod{}}
		state.Write(removedKey, r)
	}
	r.pods[remove.GetPod().UID] = remove.GetPod()
	return nil
}

// Filter is that of DynamicResources. In a dry run, claims whose pods are all removed count as free. A node without free devices is one
// where preemption may help: DynamicResources says that it is not (statusUnschedulable, kubernetes 1.37.2).
func (p *candidatePlugin) Filter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	r := removedIn(state)
	if r == nil {
		status := p.DynamicResources.Filter(ctx, state, pod, node)
		if status.Code() == framework.UnschedulableAndUnresolvable && p.shared.Evicts(p.handle.ProfileName()) &&
			!p.elsewhere(pod, node.Node()) {
			return framework.NewStatus(framework.Unschedulable, status.Reasons()...)
		}
		return status
	}
	change := p.shared.Without(pod, node.Node().Name, p.ends(node, r.pods))
	claims := node.Node().Name
	for _, c := range change.Released {
		claims += " " + string(c.UID)
	}
	if r.claims != claims {
		status := p.whatIf.filter(ctx, pod, node, change)
		if ctx.Err() != nil || status.Code() == framework.Error {
			return status
		}
		r.claims, r.last = claims, status
	}
	return r.last
}
