// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
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
			breaks += v.ViolateCount
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
	if d.handle.RunFilterPluginsWithNominatedPods(ctx, d.state, d.preemptor, d.node).IsSuccess() {
		return true, nil
	}
	return false, d.remove(ctx, v)
}

// note keeps what the pod gets if the victims go.
func (d *dryRun) note(ctx context.Context, pods []*corev1.Pod) {
	name, r := d.node.Node().Name, room{victims: pods}
	if devices := d.devices(); devices != nil && len(pods) > 0 {
		r.change = d.shared.Without(d.preemptor, name, devices.ends(d.node, removedIn(d.state)))
		r.units = d.shared.Units(name, r.change.Released)
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
