// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Complaint is a warning that speaks against a driver.
type Complaint struct {
	// At is when it was written last, to the second.
	At   time.Time
	Text string
}

// Complaints are the warnings of a namespace about pods and claims whose names have a prefix.
func (c Client) Complaints(ctx context.Context, namespace, prefix string) ([]Complaint, error) {
	list, err := c.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return nil, fmt.Errorf("list warnings of namespace %s: %w", namespace, err)
	}
	return complaints(list.Items, prefix), nil
}

// complaints are the warnings among events that speak against a driver. Others are no business of its: the API server, for
// one, now and then warns of its own Service "kubernetes" (ClusterIPNotAllocated: pkg/registry/core/service/ipallocator/controller
// of k8s.io/kubernetes).
func complaints(events []corev1.Event, prefix string) (all []Complaint) {
	for i := range events {
		e := &events[i]
		about := e.InvolvedObject.Kind == "Pod" || e.InvolvedObject.Kind == "ResourceClaim"
		if e.Type == corev1.EventTypeWarning && about && strings.HasPrefix(e.InvolvedObject.Name, prefix) && !passing(e) {
			on := e.InvolvedObject
			text := fmt.Sprintf("%s %s: %s: %s (%d times)", on.Kind, on.Name, e.Reason, e.Message, e.Count)
			all = append(all, Complaint{At: e.LastTimestamp.Time, Text: text})
		}
	}
	return all
}

// passing reports whether a warning is what parts of Kubernetes say that have not yet seen what others have, or were slow, and that they
// mend themselves.
func passing(e *corev1.Event) bool {
	switch e.Reason {
	case "FailedScheduling": // a pod may wait until the scheduler sees what another released
		return true
	case "NodeNotReady": // the node lifecycle controller says so of each pod of a node whose kubelet was late
		return true
	case "FailedResourceClaimCreation": // the controller has seen the pod, and not yet its template
		return strings.Contains(e.Message, "not found")
	default: // the kubelet has heard of a pod before the node authorizer lets it read the pod's claim
		return Early(e.Message)
	}
}

// Early reports whether a message of the kubelet is that the API server's node authorizer does not yet let it read the claim of a pod.
// The kubelet asks again, before it asks the plugin.
func Early(message string) bool {
	return strings.Contains(message, "fetch ResourceClaim") && strings.Contains(message, "no relationship found between node")
}
