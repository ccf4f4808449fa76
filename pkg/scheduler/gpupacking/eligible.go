// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// eligible are the names of the nodes that the cheap filters of the scheduler would not refuse. Nodes that it refuses
// must not be among the best: the pod would fall back for nothing.
type eligible struct {
	// free have the resources, host ports and pod slots that the pod asks for. Of busy nodes, pods may be evicted for it.
	free, busy []string
	// refused is how many others there are.
	refused int
	// groups are those of the nodes, for pods that other plugins may refuse a whole group for, or that prefer one.
	groups *groups
	// replicas are how many pods of its controller a node has, for pods that are to be spread.
	replicas map[string]int
}

// has reports whether a node is one of them.
func (e *eligible) has(node string) bool {
	return slices.Contains(e.free, node) || slices.Contains(e.busy, node)
}

// eligibleNodes sorts nodes. Of extended resources, those that are DeviceClasses are left out: they are a matter of devices.
func (a *asks) eligibleNodes(logger klog.Logger, pod *corev1.Pod, nodes []framework.NodeInfo) eligible {
	found := eligible{free: make([]string, 0, len(nodes)), groups: groupsOf(logger, pod, nodes)}
	affinity, wanted, volumes := nodeaffinity.GetRequiredNodeAffinity(pod), a.wanted(pod, nodes), a.stored.of(pod)
	for _, n := range nodes {
		node := n.Node()
		if node == nil || !admits(logger, pod, node, affinity) || !wanted.within(n, false) || !volumes.reach(node) {
			found.refused++
			continue
		}
		if !wanted.within(n, true) {
			found.busy = append(found.busy, node.Name)
			continue
		}
		found.free = append(found.free, node.Name)
	}
	return found
}

// wanted is what a pod asks of a node besides devices.
type wanted struct {
	cpu, memory, ephemeralStorage int64
	// scalar are hugepages and extended resources.
	scalar map[corev1.ResourceName]int64
	ports  []corev1.ContainerPort
}

// wanted is what NodeResourcesFit and NodePorts go by. A resource that no node has is left to them: it may be one that NodeResourcesFit
// ignores (ignoredResources), or that an extender has.
func (a *asks) wanted(pod *corev1.Pod, nodes []framework.NodeInfo) wanted {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	w := wanted{scalar: map[corev1.ResourceName]int64{}, ports: hostPorts(pod)}
	for name, quantity := range requests {
		switch name {
		case corev1.ResourceCPU:
			w.cpu = quantity.MilliValue()
		case corev1.ResourceMemory:
			w.memory = quantity.Value()
		case corev1.ResourceEphemeralStorage:
			w.ephemeralStorage = quantity.Value()
		default:
			has := func(n framework.NodeInfo) bool { return n.GetAllocatable().GetScalarResources()[name] > 0 }
			if a.classOf(name) == nil && slices.ContainsFunc(nodes, has) {
				w.scalar[name] = quantity.Value()
			}
		}
	}
	return w
}

// hostPorts are those of containers that run at the same time (k8s.io/kubernetes/pkg/scheduler/util, GetHostPorts).
func hostPorts(pod *corev1.Pod) (ports []corev1.ContainerPort) {
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				ports = append(ports, p)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// within reports whether a node has what is wanted: in all, or besides what its pods have.
func (w *wanted) within(n framework.NodeInfo, free bool) bool {
	has, used := n.GetAllocatable(), n.GetRequested()
	fits := func(amount, has, used int64) bool {
		if free {
			has -= used
		}
		return amount <= 0 || amount <= has
	}
	if !fits(w.cpu, has.GetMilliCPU(), used.GetMilliCPU()) || !fits(w.memory, has.GetMemory(), used.GetMemory()) ||
		!fits(w.ephemeralStorage, has.GetEphemeralStorage(), used.GetEphemeralStorage()) {
		return false
	}
	for name, amount := range w.scalar {
		if !fits(amount, has.GetScalarResources()[name], used.GetScalarResources()[name]) {
			return false
		}
	}
	if !free {
		return has.GetAllowedPodNumber() > 0
	}
	conflicts := func(p corev1.ContainerPort) bool {
		return n.GetUsedPorts().CheckConflict(p.HostIP, string(p.Protocol), p.HostPort)
	}
	return len(n.GetPods()) < has.GetAllowedPodNumber() && !slices.ContainsFunc(w.ports, conflicts)
}

// admits reports whether taints, labels and names let a pod on a node.
func admits(logger klog.Logger, pod *corev1.Pod, node *corev1.Node, affinity nodeaffinity.RequiredNodeAffinity) bool {
	if node.Spec.Unschedulable && !tolerates(logger, pod, &unschedulable) || pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return false
	}
	if _, refused := schedulinghelpers.FindMatchingUntoleratedTaint(logger, node.Spec.Taints, pod.Spec.Tolerations, keepsOff, false); refused {
		return false
	}
	ok, err := affinity.Match(node)
	return err == nil && ok
}

var unschedulable = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

func tolerates(logger klog.Logger, pod *corev1.Pod, taint *corev1.Taint) bool {
	return schedulinghelpers.TolerationsTolerateTaint(logger, pod.Spec.Tolerations, taint, false)
}

func keepsOff(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}
