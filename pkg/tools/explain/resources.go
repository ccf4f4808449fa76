// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// scarce notes CPU or memory of which the pod's containers ask for more than any of the nodes has where devices are free: what the
// scheduler counts beside devices is not searched here, and yet the pod waits for ever.
func (q *Question) scarce(fitting []*corev1.Node) (notes []string) {
	if q.pod == nil {
		return nil
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		asked, most := resource.Quantity{}, resource.Quantity{}
		for i := range q.pod.Spec.Containers {
			asked.Add(q.pod.Spec.Containers[i].Resources.Requests[name])
		}
		for _, n := range fitting {
			has, known := n.Status.Allocatable[name]
			if !known {
				return nil
			}
			if has.Cmp(most) > 0 {
				most = has
			}
		}
		if len(fitting) > 0 && asked.Cmp(most) > 0 {
			notes = append(notes, fmt.Sprintf("It asks for %s of %s, and no node where devices are free has more than %s.", &asked, name, &most))
		}
	}
	return notes
}
