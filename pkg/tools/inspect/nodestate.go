// SPDX-License-Identifier: Apache-2.0

package inspect

import corev1 "k8s.io/api/core/v1"

// States of nodes that take no pods.
const (
	NodeNotReady = "not ready"
	NodeCordoned = "cordoned"
	// NodeUnknown is a node whose ResourceSlices are left.
	NodeUnknown = "no Node object"
)

// NodeState is why a node takes no pods; empty if it takes them.
func NodeState(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return NodeNotReady
		}
	}
	if n.Spec.Unschedulable {
		return NodeCordoned
	}
	return ""
}
