// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

const (
	scoresKey   framework.StateKey = Name + "/scores"
	reservedKey framework.StateKey = Name + "/reserved"
)

// scoreStep is between nodes of different cost. With the weight that docs/scheduler.md names, 60, it is worth 1500 points, more
// than all other plugins of the default configuration give together (1300 in kubernetes 1.37, with that of VolumeBinding, which
// has no weight there and so 1), so that they only choose among equal nodes.
const scoreStep = 25

// scores of nodes by name.
type scores map[string]int64

// Clone returns the scores themselves: they do not change.
func (s scores) Clone() framework.StateData { return s }

// PreScore compares the nodes that are left. Those of equal cost have equal scores: the best 100, the second best 75.
func (p *Plugin) PreScore(_ context.Context, state framework.CycleState, _ *corev1.Pod, nodes []framework.NodeInfo) *framework.Status {
	d := read(state)
	if d == nil || len(d.costs) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	var costs []packing.Cost
	for _, n := range nodes {
		if c, ok := d.costs[n.Node().Name]; ok {
			costs = append(costs, c)
		}
	}
	slices.SortFunc(costs, d.query.strategy.Compare)
	costs = slices.CompactFunc(costs, func(a, b packing.Cost) bool { return d.query.strategy.Compare(a, b) == 0 })
	found := scores{}
	for _, n := range nodes {
		if c, ok := d.costs[n.Node().Name]; ok {
			rank, _ := slices.BinarySearchFunc(costs, c, d.query.strategy.Compare)
			found[n.Node().Name] = max(0, framework.MaxScore-int64(rank)*scoreStep)
		}
	}
	state.Write(scoresKey, found)
	return nil
}

// Score is higher the better the node.
func (p *Plugin) Score(_ context.Context, state framework.CycleState, _ *corev1.Pod, node framework.NodeInfo) (int64, *framework.Status) {
	data, err := state.Read(scoresKey)
	if err != nil {
		return 0, nil
	}
	found, _ := data.(scores)
	return found[node.Node().Name], nil
}

// ScoreExtensions are none.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return nil }

// heldKey is that of the hold of the pod until it got its devices.
const heldKey framework.StateKey = Name + "/held"

// Clone returns the hold itself.
func (h *hold) Clone() framework.StateData { return h }

// heldBefore is the hold that Reserve ended in a cycle, and its node; nil for none.
func heldBefore(state framework.CycleState) (*hold, string) {
	data, err := state.Read(heldKey)
	if err != nil {
		return nil, ""
	}
	if held, ok := data.(*hold); ok {
		return held, held.node
	}
	return nil, ""
}

// reserved are the claims whose devices a pod's cycle assumed.
type reserved []reservedClaim

type reservedClaim struct {
	namespace, name string
	uid             types.UID
	// holder is the UID under which the devices are assumed: the claim's, or for extended resources the pod's.
	holder types.UID
}

// Clone returns the claims themselves: they do not change.
func (r reserved) Clone() framework.StateData { return r }

// Reserve counts the devices that DynamicResources chose until the API server has them.
func (p *Plugin) Reserve(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	var all reserved
	var own []resourceapi.DeviceRequestAllocationResult
	for i := range pod.Spec.ResourceClaims {
		claim, err := p.asks.claim(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || claim == nil || claim.Status.Allocation != nil {
			continue
		}
		if pending := p.dra.ResourceClaims().GetPendingAllocation(claim.UID); pending != nil {
			p.cluster.assume(claim.UID, pending.Devices.Results)
			own = append(own, pending.Devices.Results...)
			all = append(all, reservedClaim{claim.Namespace, claim.Name, claim.UID, claim.UID})
		}
	}
	if devices := p.reservedExtended(ctx, state, node, own); len(devices) > 0 {
		p.cluster.assume(pod.UID, devices)
		all = append(all, reservedClaim{holder: pod.UID})
	}
	state.Write(reservedKey, all)
	p.waiting.remove(pod.UID)
	if held := p.cluster.holds.bind(pod.UID); held != nil {
		state.Write(heldKey, held)
	}
	d := read(state)
	if d == nil {
		return nil
	}
	if cost, ok := d.costs[node]; ok {
		placementLost.WithLabelValues(string(d.query.strategy)).Observe(float64(cost.Lost))
	}
	if d.outcome == outcomeChecked {
		p.checks.wrong(checkKey(pod, d.query))
		klog.FromContext(ctx).Info("The allocator found room on GPUs that the plugin did not see", "pod", klog.KObj(pod), "node", node)
	}
	return nil
}

// Unreserve undoes Reserve, whatever became of the claims meanwhile. What was held for the pod is held again for its next attempt, before
// its devices are free, unless its claims have them.
func (p *Plugin) Unreserve(_ context.Context, state framework.CycleState, pod *corev1.Pod, on string) {
	held, node := heldBefore(state)
	again, free := p.cluster.holds.unbind(pod.UID, held, state.IsPodGroupSchedulingCycle()), false
	for _, c := range readReserved(state) {
		if p.cluster.forget(c.holder) {
			p.released.put(pod.UID, struct{}{})
			free = true
		}
	}
	switch {
	case !again:
		p.cluster.holds.tell(node, "", false)
	case !free:
		p.shared.drop(pod.UID, "", node == on)
	}
}

// PostBind ends what Reserve assumed: DynamicResources wrote it before the pod was bound.
func (p *Plugin) PostBind(_ context.Context, state framework.CycleState, pod *corev1.Pod, on string) {
	if d := read(state); d != nil {
		if first, ok := p.queued.end(pod.UID); ok {
			queueSeconds.WithLabelValues(d.query.class).Observe(time.Since(first).Seconds())
		}
	}
	_, node := heldBefore(state)
	p.cluster.holds.tell(node, "", node == on)
	for _, c := range readReserved(state) {
		if c.uid == "" {
			if claim := p.cluster.extendedClaim(pod); claim != nil {
				c.namespace, c.name, c.uid = claim.Namespace, claim.Name, claim.UID
			}
		}
		version := ""
		if claim, err := p.dra.ResourceClaims().Get(c.namespace, c.name); err == nil && claim.UID == c.uid {
			version = claim.ResourceVersion
		}
		p.cluster.confirm(c, version)
	}
}

func readReserved(state framework.CycleState) reserved {
	data, err := state.Read(reservedKey)
	if err != nil {
		return nil
	}
	all, _ := data.(reserved)
	return all
}
