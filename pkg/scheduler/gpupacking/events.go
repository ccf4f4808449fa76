// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// EventsToRegister are those that may give room on GPUs to a pod that had none, or let it on more nodes. What pods use of CPU, memory and
// other resources is no part of that: where they only lack those, nodes are left to NodeResourcesFit, which has events of its own.
//
// The functions follow the object of the event before they answer. They run before the pod is queued, and the informers'
// handlers may run after its next attempt.
func (p *Plugin) EventsToRegister(context.Context) ([]framework.ClusterEventWithHint, error) {
	const (
		node  = framework.Add | framework.UpdateNodeLabel | framework.UpdateNodeTaint | framework.UpdateNodeAllocatable
		every = framework.Add | framework.Update | framework.Delete
		more  = framework.Add | framework.Update
	)
	return []framework.ClusterEventWithHint{
		{Event: framework.ClusterEvent{Resource: framework.Node, ActionType: node}, QueueingHintFn: p.afterNode},
		{Event: framework.ClusterEvent{Resource: framework.AssignedPod, ActionType: framework.Delete}, QueueingHintFn: p.afterPod},
		{Event: framework.ClusterEvent{Resource: framework.ResourceClaim, ActionType: every}, QueueingHintFn: p.afterClaim},
		{Event: framework.ClusterEvent{Resource: framework.ResourceSlice, ActionType: every}, QueueingHintFn: p.afterSlice},
		{Event: framework.ClusterEvent{Resource: framework.DeviceClass, ActionType: more}},
		{Event: framework.ClusterEvent{Resource: framework.TargetPod,
			ActionType: framework.UpdatePodGeneratedResourceClaim | framework.UpdatePodToleration | framework.UpdatePodScaleDown}},
		{Event: framework.ClusterEvent{Resource: framework.PersistentVolume, ActionType: more}, QueueingHintFn: afterVolume},
		{Event: framework.ClusterEvent{Resource: framework.PersistentVolumeClaim, ActionType: more}, QueueingHintFn: afterVolume},
		{Event: framework.ClusterEvent{Resource: framework.StorageClass, ActionType: more}, QueueingHintFn: afterVolume},
	}, nil
}

func afterVolume(_ klog.Logger, pod *corev1.Pod, _, _ any) (framework.QueueingHint, error) {
	return hint(hasVolumes(pod)), nil
}

// afterNode queues pods that may fit on the node. What a device plugin has there changes the meaning of extended resources.
func (p *Plugin) afterNode(_ klog.Logger, pod *corev1.Pod, _, after any) (framework.QueueingHint, error) {
	n, ok := after.(*corev1.Node)
	return hint(!ok || p.asks.anyExtended(pod) || p.mayFit(pod, n.Name)), nil
}

// afterPod queues pods after one that did not get its devices in the end. Devices of a pod that had them are free when its
// claim is.
func (p *Plugin) afterPod(_ klog.Logger, _ *corev1.Pod, before, _ any) (framework.QueueingHint, error) {
	gone, ok := before.(*corev1.Pod)
	if !ok {
		return framework.Queue, nil
	}
	_, released := p.released.get(gone.UID)
	return hint(released || gone.Status.NominatedNodeName != ""), nil
}

// afterClaim queues the pods of a claim, and those that may fit on a node where it had devices, or where fewer pods have to go for them.
func (p *Plugin) afterClaim(_ klog.Logger, pod *corev1.Pod, before, after any) (framework.QueueingHint, error) {
	b, _ := before.(*resourceapi.ResourceClaim)
	a, _ := after.(*resourceapi.ResourceClaim)
	claim := a
	if claim == nil {
		claim = b
	}
	if claim == nil || refersTo(pod, claim) {
		return framework.Queue, nil
	}
	had := results(b)
	if len(had) == 0 || a != nil && a.UID == b.UID && sameDevices(had, results(a)) && !left(b, a) {
		return framework.QueueSkip, nil
	}
	p.cluster.follow(claim)
	nodes, ok := p.cluster.nodesOf(had)
	return hint(!ok || slices.ContainsFunc(nodes, func(n string) bool { return p.mayFit(pod, n) })), nil
}

func results(c *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if c == nil || c.Status.Allocation == nil {
		return nil
	}
	return c.Status.Allocation.Devices.Results
}

func refersTo(pod *corev1.Pod, claim *resourceapi.ResourceClaim) bool {
	return pod.Namespace == claim.Namespace && slices.ContainsFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool {
		name, _, err := resourceclaim.Name(pod, &r)
		return err == nil && name != nil && *name == claim.Name
	})
}

// afterSlice queues pods that may fit on the node that the slice is of. It comes also where a DeviceTaintRule changed.
func (p *Plugin) afterSlice(_ klog.Logger, pod *corev1.Pod, before, after any) (framework.QueueingHint, error) {
	if last, ok := before.(cache.DeletedFinalStateUnknown); ok {
		before = last.Obj
	}
	for _, object := range []any{before, after} {
		s, ok := object.(*resourceapi.ResourceSlice)
		if !ok || s == nil {
			continue
		}
		if s.Spec.NodeName == nil {
			return framework.Queue, nil
		}
		p.cluster.follow(s)
		if p.mayFit(pod, *s.Spec.NodeName) {
			return framework.Queue, nil
		}
	}
	return framework.QueueSkip, nil
}

// mayFit reports whether a pod that found no room may fit on a node now.
func (p *Plugin) mayFit(pod *corev1.Pod, node string) bool {
	w, ok := p.waiting.get(pod.UID)
	return !ok || p.cluster.mayFit(context.Background(), w, node)
}

// waiter is a pod that found no room, and what it looks for.
type waiter struct {
	query
	pod *corev1.Pod
	// rules are those by which others may be evicted for it; nil where nobody is.
	rules *Rules
}

// wake tries pods that wait, but for one: those that may fit on a node, and those of which that is not known. No event of the API server
// says that a hold has ended there.
func (p *Plugin) wake(ctx context.Context, node string, except types.UID, taken bool) {
	pods := map[string]*corev1.Pod{}
	for _, pod := range p.cluster.holds.takeRefused(node, except, taken) {
		pods[pod.Namespace+"/"+pod.Name] = pod
	}
	for _, w := range p.waiting.all() {
		if w.pod.UID != except && p.cluster.mayFit(ctx, w, node) {
			pods[w.pod.Namespace+"/"+w.pod.Name] = w.pod
		}
	}
	if len(pods) > 0 {
		p.handle.Activate(klog.FromContext(ctx), pods)
	}
}

func hint(queue bool) framework.QueueingHint {
	if queue {
		return framework.Queue
	}
	return framework.QueueSkip
}
