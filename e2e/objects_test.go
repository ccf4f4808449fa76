// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// gpuPod is a pod with one container and a claim of its own, made from a template of the pod's name, for so many GPUs
// that all selectors fit.
func gpuPod(name string, count int64, selectors ...string) []runtime.Object {
	return claimPod(name, claimOf(count, selectors...))
}

// claimOf asks for so many GPUs that all selectors fit.
func claimOf(count int64, selectors ...string) resourceapi.ResourceClaimSpec {
	return workload.ClaimSpec(workload.Driver, count, selectors...)
}

// claimPod is a pod with one container and a claim of its own.
func claimPod(name string, spec resourceapi.ResourceClaimSpec) []runtime.Object {
	return []runtime.Object{workload.Template(name, spec), workload.Pod(name, name)}
}

// podOf is the pod among objects.
func podOf(objects []runtime.Object) *corev1.Pod {
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			return pod
		}
	}
	return nil
}

// thisGPU selects one GPU.
func thisGPU(d *resourceapi.Device) string {
	return fmt.Sprintf(`device.attributes["gpu.cleave.dev"].uuid == %q`, *d.Attributes["uuid"].StringValue)
}

// ownClaim is the name of the claim that was made for a pod.
func ownClaim(pod *corev1.Pod) string {
	for _, c := range pod.Status.ResourceClaimStatuses {
		if c.ResourceClaimName != nil {
			return *c.ResourceClaimName
		}
	}
	return ""
}

// processes lists what runs on this machine now; none where /proc cannot be read.
func processes() []process.Process {
	list, _ := process.List()
	return list
}
