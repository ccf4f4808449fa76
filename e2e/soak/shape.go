// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// Ask is what one claim asks for; the name of the template that it is made from.
type Ask string

// What claims ask for.
const (
	AskWhole      Ask = "whole"
	AskPair       Ask = "pair"
	AskSmall      Ask = "small"
	AskSeveral    Ask = "several"
	AskSlice      Ask = "slice"
	AskMPS        Ask = "mps"
	AskPartSlice  Ask = "partition-slice"
	AskPartMPS    Ask = "partition-mps"
	AskAdmin      Ask = "admin"
	classWhole        = workload.Driver
	classSmall        = "mig-1g.10gb.cleave.dev"
	classMedium       = "mig-2g.20gb.cleave.dev"
	classSlice        = "timeslice.cleave.dev"
	classMPS          = "mps.cleave.dev"
	classPartSl       = "mig-timeslice.cleave.dev"
	classPartMPS      = "mig-mps.cleave.dev"
	terminate         = "trap 'exit 0' TERM; sleep 100000 & wait"
	maxNameLength     = 60
	// podVariable of the environment names the pod to those who look at its processes.
	podVariable = "SOAK_POD"
)

func (a Ask) spec() resourceapi.ResourceClaimSpec {
	switch a {
	case AskPair:
		return workload.ClaimSpec(classWhole, 2)
	case AskSmall:
		return workload.ClaimSpec(classSmall, 1)
	case AskSeveral:
		return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			workload.Request("small", classSmall, 2), workload.Request("medium", classMedium, 1),
		}}}
	case AskSlice:
		return workload.ClaimSpec(classSlice, 1)
	case AskMPS:
		return workload.ClaimSpec(classMPS, 1)
	case AskPartSlice:
		return workload.ClaimSpec(classPartSl, 1)
	case AskPartMPS:
		return workload.ClaimSpec(classPartMPS, 1)
	case AskAdmin:
		spec, yes := workload.ClaimSpec(classWhole, 1), true
		spec.Devices.Requests[0].Exactly.AdminAccess = &yes
		return spec
	default:
		return workload.ClaimSpec(classWhole, 1)
	}
}

// takes is what a claim takes of the node: of what, and how much.
func (a Ask) takes() map[resource]int {
	switch a {
	case AskWhole:
		return map[resource]int{wholeGPUs: 1}
	case AskPair:
		return map[resource]int{wholeGPUs: 2}
	case AskSmall:
		return map[resource]int{slicesOfGPUs: 1}
	case AskSeveral:
		return map[resource]int{slicesOfGPUs: 4}
	case AskSlice:
		return map[resource]int{timeShares: 1}
	case AskMPS:
		return map[resource]int{mpsShares: 1}
	case AskPartSlice:
		return map[resource]int{partTimeShares: 1}
	case AskPartMPS:
		return map[resource]int{partMPSShares: 1}
	default:
		return nil
	}
}

// resource of a node that pods of a soak compete for. Each tier has its own, so that a GPU is left to recover with.
type resource string

const (
	wholeGPUs      resource = "whole GPUs"
	slicesOfGPUs   resource = "slices of partitioned GPUs"
	timeShares     resource = "time-sliced shares"
	mpsShares      resource = "MPS shares"
	partTimeShares resource = "time-sliced shares of partitions"
	partMPSShares  resource = "MPS shares of partitions"
)

// room is how much of each the pods may have at once on a node with eight H100s and the policy of a soak: two GPUs whole,
// two for partitions, one each for the two kinds of shares and for shared partitions. One is left, for rivals and for the pods of faults.
func room() map[resource]int {
	return map[resource]int{wholeGPUs: 2, slicesOfGPUs: 9, timeShares: 7, mpsShares: 9, partTimeShares: 6, partMPSShares: 3}
}

// policy has more shares of a GPU than the default, an interval that is not the default, and shared partitions.
const policy = `[{timeSlice: {shares: 8, interval: Long}, mps: {shares: 10},
  mig: {share: [{profile: 3g.40gb, mps: {shares: 4}}, {profile: 2g.20gb, timeSlice: {shares: 4}}]}}]`

// otherPolicy offers two GPUs whole only.
const otherPolicy = `[{match: {indexes: [0, 1]}, tiers: [exclusive]}, {timeSlice: {shares: 8, interval: Long}, mps: {shares: 10},
  mig: {share: [{profile: 3g.40gb, mps: {shares: 4}}, {profile: 2g.20gb, timeSlice: {shares: 4}}]}}]`

// Shape of a pod: the claims that it has.
type Shape struct {
	Name string
	// Claims of the pod. A claim of MPS has a container of its own.
	Claims []Ask
	// Group is how many pods share the claims, which are those of their PodGroup (KEP-5729); 0 for a pod with claims of its own.
	Group int
}

// Shapes are those of the pods of a plan.
func Shapes() []Shape {
	return []Shape{
		{Name: "whole", Claims: []Ask{AskWhole}},
		{Name: "pair", Claims: []Ask{AskPair}},
		{Name: "partitions", Claims: []Ask{AskSmall, AskSmall, AskSmall, AskSmall}},
		{Name: "several", Claims: []Ask{AskSeveral, AskSmall}},
		{Name: "slices", Claims: []Ask{AskSlice, AskSlice, AskSlice, AskSlice}},
		{Name: "mps", Claims: []Ask{AskMPS, AskMPS, AskMPS}},
		{Name: "shared-partitions", Claims: []Ask{AskPartSlice, AskPartSlice, AskPartSlice, AskPartMPS}},
		{Name: "mixed", Claims: []Ask{AskWhole, AskSmall, AskSlice, AskPartSlice}},
		{Name: "admin", Claims: []Ask{AskAdmin, AskAdmin, AskAdmin, AskSlice}},
		{Name: "group", Claims: []Ask{AskWhole, AskSmall, AskSlice}, Group: 2},
	}
}

// usesMPS reports whether a pod has a share by MPS.
func (s Shape) usesMPS() bool {
	return slices.Contains(s.Claims, AskMPS) || slices.Contains(s.Claims, AskPartMPS)
}

// probe is the shape of the pod that shows that a node has recovered.
func probe() Shape { return Shape{Name: "probe", Claims: []Ask{AskSmall, AskSlice, AskMPS}} }

// takes is what a pod takes of the node.
func (s Shape) takes() map[resource]int {
	sum := map[resource]int{}
	for _, a := range s.Claims {
		for what, n := range a.takes() {
			sum[what] += n
		}
	}
	return sum
}

// templates of all claims of a soak.
func templates() []runtime.Object {
	var asks []Ask
	for _, s := range append(Shapes(), probe()) {
		asks = append(asks, s.Claims...)
	}
	slices.Sort(asks)
	var list []runtime.Object
	for _, a := range slices.Compact(asks) {
		list = append(list, workload.Template(string(a), a.spec()))
	}
	return list
}

// claimName is the name of a claim in the specs of a pod and of its PodGroup, which have to agree.
func claimName(index int) string { return fmt.Sprintf("claim-%d", index) }

// manifest of a pod of the shape, in a PodGroup if that has a name. It is as cheap as a pod can be: on the network of the host, with a
// container that waits, and for MPS one with a program that stands for one of CUDA.
func (s Shape) manifest(name, group string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name[:min(len(name), maxNameLength)]}, Spec: corev1.PodSpec{
		// A kubelet never starts a pod again of which containers existed before a reboot, but none ran, if its policy is Never.
		RestartPolicy: corev1.RestartPolicyAlways, HostNetwork: true, Containers: []corev1.Container{{Name: "main"}},
	}}
	workload.MakeLocal(&pod.Spec)
	if group != "" {
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	}
	grace := int64(1)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	main := &pod.Spec.Containers[0]
	main.Command = []string{"/bin/sh", "-c", terminate}
	main.Env = []corev1.EnvVar{{Name: podVariable, Value: name}}
	var others []corev1.Container
	for i, a := range s.Claims {
		claim, template := claimName(i), string(a)
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimTemplateName: &template})
		use := []corev1.ResourceClaim{{Name: claim}}
		if a != AskMPS && a != AskPartMPS {
			main.Resources.Claims = append(main.Resources.Claims, use...)
			continue
		}
		client := *main.DeepCopy()
		client.Name, client.Resources.Claims = claim, use
		others = append(others, client)
	}
	if len(main.Resources.Claims) == 0 {
		pod.Spec.Containers = nil
	}
	pod.Spec.Containers = append(pod.Spec.Containers, others...)
	if len(others) > 0 && s.Name == "mps" {
		workload.RunCUDAIn(&pod.Spec.Containers[len(pod.Spec.Containers)-1])
	}
	return pod
}
