// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// onNode returns why claims or their pod cannot be on a node, whatever devices it has.
func (q *Question) onNode(node *corev1.Node) (found []Cause) {
	for _, claim := range q.claims {
		if a := claim.Status.Allocation; a != nil && a.NodeSelector != nil {
			if selector, err := nodeaffinity.NewNodeSelector(a.NodeSelector); err == nil && !selector.Match(node) {
				found = append(found, Cause{Kind: Elsewhere, Claim: nameOf(claim), name: nodeOf(a.NodeSelector)})
			}
		}
	}
	for _, name := range q.resources {
		if quantity := node.Status.Allocatable[name]; quantity.Value() > 0 {
			found = append(found, Cause{Kind: DevicePlugin, name: string(name)})
		}
	}
	if q.pod == nil {
		return append(found, withoutPod(node)...)
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(q.pod).Match(node); err != nil || !fits {
		found = append(found, Cause{Kind: NodeAffinity})
	}
	cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(klog.Logger{}, q.pod.Spec.Tolerations, &cordoned, true) {
		return append(found, Cause{Kind: Cordoned})
	}
	taint, refused := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, q.pod.Spec.Tolerations, hard, true)
	if refused {
		found = append(found, Cause{Kind: NodeTaint, Taint: taintOfNode(&taint)})
	}
	return found
}

// hard reports whether a taint keeps away pods that do not tolerate it.
func hard(t *corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
}

func taintOfNode(taint *corev1.Taint) *Taint {
	t := &Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)}
	if taint.TimeAdded != nil {
		since := taint.TimeAdded.UTC()
		t.Since = &since
	}
	return t
}

// kubernetesTaints are those that Kubernetes sets and removes by itself.
const kubernetesTaints = "node.kubernetes.io/"

// withoutPod returns why hardly any pod can be on a node: Kubernetes sets these taints where a node is not ready, under
// pressure or cordoned.
func withoutPod(node *corev1.Node) (found []Cause) {
	if node.Spec.Unschedulable {
		found = append(found, Cause{Kind: Cordoned})
	}
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; hard(t) && strings.HasPrefix(t.Key, kubernetesTaints) && t.Key != corev1.TaintNodeUnschedulable {
			found = append(found, Cause{Kind: NodeTaint, name: "pods do not tolerate", Taint: taintOfNode(t)})
		}
	}
	return found
}

// nodeOf is the node that an allocation selects by name; empty if it selects nodes otherwise.
func nodeOf(selector *corev1.NodeSelector) string {
	for _, term := range selector.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}
