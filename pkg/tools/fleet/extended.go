// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// extendedSuffix makes of a pod's name that of the claim for its extended resources, as the scheduler does, but for random
// characters (pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go).
const extendedSuffix = "-extended-resources"

func extendedKey(p *corev1.Pod) string { return p.Namespace + "/" + p.Name + extendedSuffix }

// pendingPods are the pods without a node.
func (s *Source) pendingPods() resource {
	pods := s.config.Client.CoreV1().Pods(metav1.NamespaceAll)
	waiting := fields.OneTermEqualSelector("spec.nodeName", "").String()
	return resource{
		kind: "Pods", informer: &s.watches.pods, example: &corev1.Pod{}, transform: shrinkPod,
		indexers: cache.Indexers{
			byClaim:    func(o any) ([]string, error) { return claimsOf(o.(*corev1.Pod)), nil },
			byTemplate: func(o any) ([]string, error) { return uncreated(o.(*corev1.Pod)), nil },
			byWithout: func(o any) ([]string, error) {
				if p := o.(*corev1.Pod); len(uncreated(p)) > 0 {
					return []string{p.Namespace}, nil
				}
				return nil, nil
			},
		},
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = waiting
			return pods.List(ctx, o)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = waiting
			return pods.Watch(ctx, o)
		},
		handler: onChange(podChanged, s.mark),
		missing: "Pending pods with extended resources, or without their claims, are not shown, and claims are explained without their pods",
	}
}

// podChanged marks the claims that a pod waits for. Their rows do not show its gates, its conditions, nor where it may run.
func podChanged(d *dirty, p *corev1.Pod) {
	d.reasons = d.reasons || len(p.Spec.InitContainers)+len(p.Spec.Containers)+len(p.Spec.ResourceClaims) > 0
	d.claims[extendedKey(p)] = true
	for _, key := range claimsOf(p) {
		d.claims[key] = true
	}
}

// waiting adds the names of pods that wait for a claim.
func (w *watches) waiting(claim string, names []string) []string {
	for _, p := range w.podsBy(byClaim, claim) {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// claimsOf are the keys of a pod's claims, created or not.
func claimsOf(p *corev1.Pod) (keys []string) {
	for i := range p.Spec.ResourceClaims {
		if key, _ := claimKey(p, &p.Spec.ResourceClaims[i]); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// shrinkPod is the transformation of pods. It keeps the fields that decide where their devices may be.
func shrinkPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, CreationTimestamp: p.CreationTimestamp,
		DeletionTimestamp: p.DeletionTimestamp, Finalizers: p.Finalizers,
	}}
	small.Spec.NodeName, small.Status.ExtendedResourceClaimStatus = p.Spec.NodeName, p.Status.ExtendedResourceClaimStatus
	small.Spec.InitContainers, small.Spec.Containers = asking(p.Spec.InitContainers), asking(p.Spec.Containers)
	if len(small.Spec.InitContainers)+len(small.Spec.Containers)+len(p.Spec.ResourceClaims) == 0 {
		return small, nil
	}
	small.Spec.ResourceClaims, small.Status.ResourceClaimStatuses = p.Spec.ResourceClaims, p.Status.ResourceClaimStatuses
	small.Spec.SchedulerName, small.Spec.SchedulingGroup = p.Spec.SchedulerName, p.Spec.SchedulingGroup
	small.Spec.NodeSelector, small.Spec.Tolerations = p.Spec.NodeSelector, p.Spec.Tolerations
	small.Spec.SchedulingGates = p.Spec.SchedulingGates
	if p.Spec.Affinity != nil {
		small.Spec.Affinity = &corev1.Affinity{NodeAffinity: p.Spec.Affinity.NodeAffinity}
	}
	small.Status.Conditions, small.Status.Phase = p.Status.Conditions, p.Status.Phase
	small.Status.Reason, small.Status.Message = p.Status.Reason, p.Status.Message
	return small, nil
}

// asking are the containers that request extended resources or name claims, with these alone.
func asking(all []corev1.Container) (some []corev1.Container) {
	for i := range all {
		wants := corev1.ResourceRequirements{Requests: extendedResources(all[i].Resources.Requests), Claims: all[i].Resources.Claims}
		if len(wants.Requests)+len(wants.Claims) > 0 {
			some = append(some, corev1.Container{Name: all[i].Name, Resources: wants, RestartPolicy: all[i].RestartPolicy})
		}
	}
	return some
}

// podOf is the pod that waits for a claim; nil if there is none, several, or one with claims of templates that cannot be read: then it is
// not known what it waits for.
func (w *watches) podOf(claim string) *corev1.Pod {
	pods := w.podsBy(byClaim, claim)
	if len(pods) != 1 || w.templates == nil && len(uncreated(pods[0])) > 0 {
		return nil
	}
	return pods[0]
}

// extendedPod is the pod that waits for a claim of this key, "namespace/name"; nil if there is none.
func (w *watches) extendedPod(key string) *corev1.Pod {
	name, ok := strings.CutSuffix(key, extendedSuffix)
	if !ok || w.pods == nil {
		return nil
	}
	o, found, err := w.pods.GetStore().GetByKey(name)
	if err != nil || !found {
		return nil
	}
	p := o.(*corev1.Pod)
	if p.Spec.NodeName != "" || p.Status.ExtendedResourceClaimStatus != nil {
		return nil
	}
	return p
}

// extendedClaim is the row of a pod that requests devices of the driver as extended resources; nil if it requests none.
func (w *watches) extendedClaim(p *corev1.Pod) *Claim {
	c := &Claim{
		Namespace: p.Namespace, Name: p.Name + extendedSuffix, UID: string(p.UID), Created: p.CreationTimestamp.UTC(),
		Deleting: p.DeletionTimestamp != nil, Requests: []Request{}, Pods: []string{p.Name}, ExtendedResources: true,
	}
	own := false
	for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, name := range slices.Sorted(maps.Keys(container.Resources.Requests)) {
			class := w.classFor(name)
			if class == nil {
				continue
			}
			own = own || resourcepool.SelectsDriver(class, w.driver)
			amount := container.Resources.Requests[name]
			asked := ask{class: string(name), count: amount.Value()}
			c.Requests = append(c.Requests, Request{Name: container.Name, Asks: []string{asked.String()}})
		}
	}
	if !own {
		return nil
	}
	return c
}

// classFor is a class that serves an extended resource; nil if there is none.
func (w *watches) classFor(name corev1.ResourceName) *resourceapi.DeviceClass {
	for _, class := range listed[resourceapi.DeviceClass](w.classes) {
		if string(name) == resourceapi.ResourceDeviceClassPrefix+class.Name ||
			class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == string(name) {
			return class
		}
	}
	return nil
}

// withoutNodes is the pod without what Nodes decide, unless they are known: whether their labels match, and extended resources that no
// class serves, as device plugins may have them.
func (w *watches) withoutNodes(p *corev1.Pod) *corev1.Pod {
	if w.nodes != nil {
		return p
	}
	only := p.DeepCopy()
	only.Spec.NodeSelector, only.Spec.Affinity = nil, nil
	for _, all := range [][]corev1.Container{only.Spec.InitContainers, only.Spec.Containers} {
		for i := range all {
			for name := range all[i].Resources.Requests {
				if w.classFor(name) == nil {
					delete(all[i].Resources.Requests, name)
				}
			}
		}
	}
	return only
}
