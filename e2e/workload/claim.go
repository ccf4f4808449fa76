// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// requestName is the name of a claim's only request, and of the claim in its pod.
const requestName = "gpu"

// Request is a request for so many devices of a class, with amounts such as "memory=20Gi".
func Request(name, class string, count int64, amounts ...string) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, a := range amounts {
		key, value, _ := strings.Cut(a, "=")
		if exactly.Capacity == nil {
			exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		exactly.Capacity.Requests[resourceapi.QualifiedName(key)] = resource.MustParse(value)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exactly}
}

// ClaimSpec has one request, for so many devices of a class that all selectors fit.
func ClaimSpec(class string, count int64, selectors ...string) resourceapi.ResourceClaimSpec {
	request := Request(requestName, class, count)
	for _, expression := range selectors {
		request.Exactly.Selectors = append(request.Exactly.Selectors,
			resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request}}}
}

// Parameters are opaque parameters for a driver.
func Parameters(driver string, raw []byte) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver,
		Parameters: runtime.RawExtension{Raw: raw}}}
}

// WithParameters gives a claim opaque parameters for a driver.
func WithParameters(spec resourceapi.ResourceClaimSpec, driver, text string) resourceapi.ResourceClaimSpec {
	spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: Parameters(driver, []byte(text))}}
	return spec
}

// Template of claims.
func Template(name string, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
}

// Pod has one container, main, which looks at its devices and stays, with a claim from a template unless that is "".
func Pod(name, template string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main"}}},
	}
	MakeLocal(&pod.Spec)
	if template != "" {
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: requestName}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: requestName, ResourceClaimTemplateName: &template}}
	}
	return pod
}

// Deployment keeps so many pods with labels.
func Deployment(name string, replicas int32, labels map[string]string, pod *corev1.Pod) *appsv1.Deployment {
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
	}}
}

// Spread is a Deployment whose pods are equally many on each node that takes pods.
func Spread(name string, replicas int32, labels map[string]string, pod *corev1.Pod) *appsv1.Deployment {
	pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		NodeTaintsPolicy: new(corev1.NodeInclusionPolicyHonor), LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	return Deployment(name, replicas, labels, pod)
}

// Tier is a way in which Cleave offers GPUs: the type of its devices, and a DeviceClass of them.
type Tier struct{ Type, Class string }

// Tiers are all there are on an H100 by default, with the class of its smallest partitions.
var Tiers = []Tier{{"gpu", Driver}, {"mig", "mig-1g.10gb.cleave.dev"}, {"timeslice", "timeslice.cleave.dev"}, {"mps", "mps.cleave.dev"}}

// Template is of claims for one device of the tier.
func (t Tier) Template(name string) *resourceapi.ResourceClaimTemplate {
	return Template(name, ClaimSpec(t.Class, 1))
}

// Pod has a claim from a template of the tier. A client of MPS runs a program that uses its share.
func (t Tier) Pod(name, template string) *corev1.Pod {
	pod := Pod(name, template)
	if t.Type == "mps" {
		RunCUDA(pod)
	}
	return pod
}
