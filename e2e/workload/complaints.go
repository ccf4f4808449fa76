// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Complaints are the warnings of a namespace about pods and claims whose names have a prefix, a line each.
func (c Client) Complaints(ctx context.Context, namespace, prefix string) ([]string, error) {
	list, err := c.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return nil, fmt.Errorf("list warnings of namespace %s: %w", namespace, err)
	}
	return complaints(list.Items, prefix), nil
}

// complaints are the warnings among events that speak against a driver. Others are no business of its: the API server, for
// one, now and then warns of its own Service "kubernetes" (ClusterIPNotAllocated: pkg/registry/core/service/ipallocator/controller
// of k8s.io/kubernetes). A pod may wait until the scheduler sees what another released; and the kubelet now and then hears of
// a pod before the node authorizer lets it read the pod's claim, and tries that again before it asks the plugin.
func complaints(events []corev1.Event, prefix string) (lines []string) {
	for i := range events {
		e := &events[i]
		about := e.InvolvedObject.Kind == "Pod" || e.InvolvedObject.Kind == "ResourceClaim"
		early := strings.Contains(e.Message, "fetch ResourceClaim") && strings.Contains(e.Message, "no relationship found between node")
		if e.Type == corev1.EventTypeWarning && about && strings.HasPrefix(e.InvolvedObject.Name, prefix) && e.Reason != "FailedScheduling" && !early {
			lines = append(lines, fmt.Sprintf("%s %s: %s: %s (%d times)", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message, e.Count))
		}
	}
	return lines
}
