// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// asks reads the requests of pods: devices and a strategy.
type asks struct {
	handle framework.Handle // for Events
	dra    framework.SharedDRAManager
	args   Args
	stored volumeListers
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
		for name, count := range pod.Spec.InitContainers[i].Resources.Requests {
			if !count.IsZero() && a.classOf(name) != nil {
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
		for name, count := range c.Resources.Requests {
			if !count.IsZero() && a.classOf(name) != nil {
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
			names := make([]string, 0, max(1, len(r.FirstAvailable)))
			if r.Exactly != nil {
				names = append(names, r.Exactly.DeviceClassName)
			}
			for i := range r.FirstAvailable {
				names = append(names, r.FirstAvailable[i].DeviceClassName)
			}
			for _, name := range names {
				if s, ok := a.args.Strategies[name]; ok {
					return s
				}
			}
		}
	}
	return a.args.Strategy
}
