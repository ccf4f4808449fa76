// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestComplaints(t *testing.T) {
	const early = `Failed to prepare dynamic resources: prepare dynamic resources: fetch ResourceClaim a-gpu-x: resourceclaims.resource.k8s.io "a-gpu-x" ` +
		`is forbidden: User "system:node:n" cannot get resource "resourceclaims": node: no relationship found between node 'n' and this object`
	event := func(kind, name, reason, message string) corev1.Event {
		return corev1.Event{
			Type: corev1.EventTypeWarning, InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Reason: reason, Message: message, Count: 2,
		}
	}
	normal := event("Pod", "a-1", "Pulled", "image is there")
	normal.Type = corev1.EventTypeNormal
	for _, tc := range []struct {
		name, prefix string
		event        corev1.Event
		want         []string
	}{
		{"a pod that could not be prepared", "", event("Pod", "a-1", "FailedPrepareDynamicResources", "GPU is lost"), []string{"Pod a-1: FailedPrepareDynamicResources: GPU is lost (2 times)"}},
		{"a pod whose container ended", "a-", event("Pod", "a-1", "BackOff", "restarting"), []string{"Pod a-1: BackOff: restarting (2 times)"}},
		{"a claim", "", event("ResourceClaim", "a-1-gpu", "PrepareFailed", "GPU is lost"), []string{"ResourceClaim a-1-gpu: PrepareFailed: GPU is lost (2 times)"}},
		{"a pod of another prefix", "b-", event("Pod", "a-1", "BackOff", "restarting"), nil},
		{"no warning", "", normal, nil},
		{"a pod that waits for a device", "", event("Pod", "a-1", "FailedScheduling", "cannot allocate all claims"), nil},
		{"a kubelet that is early", "", event("Pod", "a-1", "FailedPrepareDynamicResources", early), nil},
		{"a controller that is early", "", event("Pod", "a-1", "FailedResourceClaimCreation", `PodResourceClaim gpu: resource claim template "a": not found`), nil},
		{"a claim that is refused", "", event("Pod", "a-1", "FailedResourceClaimCreation", "admission policy denied request"),
			[]string{"Pod a-1: FailedResourceClaimCreation: admission policy denied request (2 times)"}},
		{"a pod of a late kubelet", "", event("Pod", "a-1", "NodeNotReady", "Node is not ready"), nil},
		{"a node", "", event("Node", "n", "CgroupV1", "cgroup v1 detected"), nil},
		{"a Service that the API server repairs", "", event("Service", "kubernetes", "ClusterIPNotAllocated", "Cluster IP [IPv4]: 10.96.0.1 is not allocated; repairing"), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, c := range complaints([]corev1.Event{tc.event}, tc.prefix) {
				got = append(got, c.Text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("complaints (-want +got):\n%s", diff)
			}
		})
	}
}
