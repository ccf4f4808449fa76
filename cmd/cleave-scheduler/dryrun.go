// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// dryRun removes pods from a node in thought.
type dryRun struct {
	*attempt
	preemptor *corev1.Pod
	state     framework.CycleState
	node      framework.NodeInfo
}

// run removes victims and adds back those that can stay, in their order, those whose budgets allow no eviction first. It returns the pods
// that cannot, and how many of them budgets do not allow to go. It is the search of DefaultPreemption (SelectVictimsOnNode) with other
// rules; pods of groups on other nodes are removed there, too.
func (d *dryRun) run(ctx context.Context, state framework.CycleState, node framework.NodeInfo, possible []*preemption.DomainVictim,
	budgets []*policyv1.PodDisruptionBudget) (pods []*corev1.Pod, breaks int, status *framework.Status) {
	d.state, d.node = state, node
	for _, v := range possible {
		if err := d.remove(ctx, v); err != nil {
			return nil, 0, framework.AsStatus(err)
		}
	}
	if status := d.handle.RunFilterPluginsWithNominatedPods(ctx, d.state, d.preemptor, d.node); !status.IsSuccess() {
		return nil, 0, status
	}
	breaking, others := preemption.FilterVictimsWithPDBViolation(possible, budgets)
	for _, v := range breaking {
		stays, err := d.spare(ctx, v.Victim)
		if err != nil {
			return nil, 0, framework.AsStatus(err)
		}
		if !stays {
			if !endsAnyway(v.Victim) {
				breaks += v.ViolateCount
			}
			pods = appendPods(pods, v.Victim)
		}
	}
	for _, v := range others {
		stays, err := d.spare(ctx, v)
		if err != nil {
			return nil, 0, framework.AsStatus(err)
		}
		if !stays {
			pods = appendPods(pods, v)
		}
	}
	d.note(ctx, pods)
	return pods, breaks, nil
}

// endsAnyway reports whether a victim is no victim, as its pods end by themselves.
func endsAnyway(v *preemption.DomainVictim) bool {
	for _, i := range v.Pods() {
		if i.GetPod().DeletionTimestamp == nil {
			return false
		}
	}
	return true
}

func appendPods(pods []*corev1.Pod, v *preemption.DomainVictim) []*corev1.Pod {
	for _, i := range v.Pods() {
		pods = append(pods, i.GetPod())
	}
	return pods
}

// remove takes the pods of a victim away. Only the node that is looked at is changed: on others, where pods of its group are, plugins are
// told.
func (d *dryRun) remove(ctx context.Context, v *preemption.DomainVictim) error {
	for _, i := range v.Pods() {
		node, here := d.nodeOf(v, i)
		if here {
			if err := node.RemovePod(klog.FromContext(ctx), i.GetPod()); err != nil {
				return err
			}
		}
		if status := d.handle.RunPreFilterExtensionRemovePod(ctx, d.state, d.preemptor, i, node); !status.IsSuccess() {
			return status.AsError()
		}
	}
	return nil
}

func (d *dryRun) add(ctx context.Context, v *preemption.DomainVictim) error {
	for _, i := range v.Pods() {
		node, here := d.nodeOf(v, i)
		if here {
			node.AddPodInfo(i)
		}
		if status := d.handle.RunPreFilterExtensionAddPod(ctx, d.state, d.preemptor, i, node); !status.IsSuccess() {
			return status.AsError()
		}
	}
	return nil
}

func (d *dryRun) nodeOf(v *preemption.DomainVictim, pod framework.PodInfo) (node framework.NodeInfo, here bool) {
	if name := pod.GetPod().Spec.NodeName; name != d.node.Node().Name {
		return v.AffectedNodes()[name], false
	}
	return d.node, true
}

// spare adds a victim back if the pod fits with it.
func (d *dryRun) spare(ctx context.Context, v *preemption.DomainVictim) (stays bool, err error) {
	if err := d.add(ctx, v); err != nil {
		return false, err
	}
	status := d.handle.RunFilterPluginsWithNominatedPods(ctx, d.state, d.preemptor, d.node)
	switch {
	case status.IsSuccess():
		return true, nil
	case ctx.Err() != nil: // other nodes are enough
		return false, context.Cause(ctx)
	case status.Code() == framework.Error: // which does not say that the victim has to go
		return false, status.AsError()
	}
	return false, d.remove(ctx, v)
}

// note keeps what the pod gets if the victims go.
func (d *dryRun) note(ctx context.Context, pods []*corev1.Pod) {
	name, r := d.node.Node().Name, room{victims: pods}
	if devices := d.devices; len(pods) > 0 {
		gone := map[types.UID]*corev1.Pod{}
		for _, pod := range pods {
			gone[pod.UID] = pod
		}
		r.change = d.shared.Without(d.preemptor, name, devices.ends(d.node, gone))
		r.units = d.shared.Units(name, evictedWith(r.change.Released, gone))
		var status *framework.Status
		if r.devices, status = devices.whatIf.allocate(ctx, d.preemptor, d.node, r.change); !status.IsSuccess() {
			klog.FromContext(ctx).V(2).Info("What a pod gets after an eviction is not known", "pod", klog.KObj(d.preemptor), "node", name,
				"reason", status.Message())
		}
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.found[name] = r
}

// evictedWith are the claims that would not be released without an eviction: those that a pod uses which does not end anyway.
func evictedWith(released []*resourceapi.ResourceClaim, gone map[types.UID]*corev1.Pod) []*resourceapi.ResourceClaim {
	return slices.DeleteFunc(slices.Clone(released), func(c *resourceapi.ResourceClaim) bool {
		return !slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
			return gone[r.UID] != nil && gone[r.UID].DeletionTimestamp == nil
		})
	})
}
