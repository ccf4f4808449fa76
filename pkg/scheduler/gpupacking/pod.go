// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/component-helpers/resource"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// asks reads the requests of pods: devices and a strategy.
type asks struct {
	handle framework.Handle // for Events
	dra    framework.SharedDRAManager
	args   Args
	// warned are pods whose annotation was reported.
	warned remembered[struct{}]
}

// demand has the claims that the allocator will be asked for, in its order: those of the pod, then one for its extended resources.
// There are no specs where nothing is asked for, and a reason where the measure has no say.
func (a *asks) demand(pod *corev1.Pod, nodes []framework.NodeInfo) (specs []*resourceapi.ResourceClaimSpec, passed string, err error) {
	for i := range pod.Spec.ResourceClaims {
		claim, err := a.claim(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, "", err
		}
		if claim == nil {
			continue
		}
		if claim.Status.Allocation != nil || a.dra.ResourceClaims().GetPendingAllocation(claim.UID) != nil {
			return nil, passedAllocated, nil
		}
		specs = append(specs, &claim.Spec)
	}
	extended, passed := a.extended(pod, nodes)
	if extended != nil {
		specs = append(specs, extended)
	}
	return specs, passed, nil
}

// claim is the claim that a pod refers to; nil where it needs none.
func (a *asks) claim(pod *corev1.Pod, reference *corev1.PodResourceClaim) (*resourceapi.ResourceClaim, error) {
	name, _, err := resourceclaim.Name(pod, reference)
	if err != nil || name == nil {
		return nil, err
	}
	return a.dra.ResourceClaims().Get(pod.Namespace, *name)
}

// extended is the claim that DynamicResources makes of extended resources that are DeviceClasses
// (pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go, createRequestsAndMappings).
func (a *asks) extended(pod *corev1.Pod, nodes []framework.NodeInfo) (spec *resourceapi.ResourceClaimSpec, passed string) {
	var requests []resourceapi.DeviceRequest
	for i := range pod.Spec.InitContainers {
		for name := range pod.Spec.InitContainers[i].Resources.Requests {
			if a.classOf(name) != nil {
				return nil, passedUnpredictable
			}
		}
	}
	for i := range pod.Spec.Containers {
		wanted := pod.Spec.Containers[i].Resources.Requests
		for index, name := range slices.Sorted(maps.Keys(wanted)) {
			class, count := a.classOf(name), wanted[name]
			if class == nil || count.IsZero() {
				continue
			}
			if slices.ContainsFunc(nodes, func(n framework.NodeInfo) bool { return n.GetAllocatable().GetScalarResources()[name] > 0 }) {
				return nil, passedPlugin
			}
			requests = append(requests, resourceapi.DeviceRequest{
				Name: fmt.Sprintf("container-%d-request-%d", len(pod.Spec.InitContainers)+i, index),
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: class.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count.Value(),
				},
			})
		}
	}
	if len(requests) == 0 {
		return nil, ""
	}
	slices.SortFunc(requests, func(a, b resourceapi.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return &resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}, ""
}

// anyExtended reports whether a pod asks for extended resources that are DeviceClasses.
func (a *asks) anyExtended(pod *corev1.Pod) bool {
	asks := func(c corev1.Container) bool {
		for name := range c.Resources.Requests {
			if a.classOf(name) != nil {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(pod.Spec.Containers, asks) || slices.ContainsFunc(pod.Spec.InitContainers, asks)
}

// classOf is the DeviceClass that an extended resource stands for; nil where it is none.
func (a *asks) classOf(name corev1.ResourceName) *resourceapi.DeviceClass {
	if !strings.Contains(string(name), "/") {
		return nil
	}
	return a.dra.DeviceClassResolver().GetDeviceClass(name)
}

// strategy is a pod's strategy: its annotation's, else that of the first class that has one, else the default. An
// unknown annotation is an Event on the pod.
func (a *asks) strategy(pod *corev1.Pod, specs []*resourceapi.ResourceClaimSpec) packing.Strategy {
	byClass := a.classStrategy(specs)
	name, ok := pod.Annotations[v1alpha1.PlacementAnnotation]
	if !ok {
		return byClass
	}
	own, err := packing.ParseStrategy(name)
	if err == nil {
		return own
	}
	if !a.warned.put(pod.UID, struct{}{}) {
		a.handle.EventRecorder().Eventf(pod, nil, corev1.EventTypeWarning, "PlacementUnknown", "Scheduling",
			"Annotation %s: %v. The pod is placed by %q.", v1alpha1.PlacementAnnotation, err, byClass)
	}
	return byClass
}

func (a *asks) classStrategy(specs []*resourceapi.ResourceClaimSpec) packing.Strategy {
	for _, spec := range specs {
		for _, r := range spec.Devices.Requests {
			if r.Exactly == nil {
				continue
			}
			if s, ok := a.args.Strategies[r.Exactly.DeviceClassName]; ok {
				return s
			}
		}
	}
	return a.args.Strategy
}

// eligible are the names of the nodes that the cheap filters of the scheduler would not refuse. Nodes that it refuses
// must not be among the best: the pod would fall back for nothing.
type eligible struct {
	// free have the CPU, memory and pod slots that the pod asks for. Of busy nodes, pods may be evicted for it.
	free, busy []string
	// refused is how many others there are.
	refused int
	// groups are those of the nodes, for pods that other plugins may refuse a whole group for, or that prefer one.
	groups *groups
	// replicas are how many pods of its controller a node has, for pods that are to be spread.
	replicas map[string]int
}

func eligibleNodes(logger klog.Logger, pod *corev1.Pod, nodes []framework.NodeInfo) eligible {
	found := eligible{free: make([]string, 0, len(nodes)), groups: groupsOf(logger, pod, nodes)}
	affinity := nodeaffinity.GetRequiredNodeAffinity(pod)
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	cpu, memory := requests.Cpu().MilliValue(), requests.Memory().Value()
	for _, n := range nodes {
		node := n.Node()
		if node == nil || !admits(logger, pod, node, affinity) {
			found.refused++
			continue
		}
		free, used := n.GetAllocatable(), n.GetRequested()
		if cpu > 0 && cpu > free.GetMilliCPU()-used.GetMilliCPU() || memory > 0 && memory > free.GetMemory()-used.GetMemory() ||
			len(n.GetPods()) >= free.GetAllowedPodNumber() {
			found.busy = append(found.busy, node.Name)
			continue
		}
		found.free = append(found.free, node.Name)
	}
	return found
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
