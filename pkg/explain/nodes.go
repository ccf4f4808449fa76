// SPDX-License-Identifier: Apache-2.0

package explain

import (
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// onNode are the causes for which claims or their pod cannot be on a node, whatever devices it has.
func (q *Question) onNode(node *corev1.Node) (found []Cause) {
	for _, claim := range q.claims {
		if a := claim.Status.Allocation; a != nil && a.NodeSelector != nil {
			if selector, err := nodeaffinity.NewNodeSelector(a.NodeSelector); err == nil && !selector.Match(node) {
				found = append(found, Cause{Kind: Elsewhere, Claim: nameOf(claim), name: nodeOf(a.NodeSelector)})
			}
		}
	}
	if q.pod == nil {
		if node.Spec.Unschedulable {
			found = append(found, Cause{Kind: Cordoned})
		}
		return found
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(q.pod).Match(node); err != nil || !fits {
		found = append(found, Cause{Kind: NodeAffinity})
	}
	cordoned := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	if node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(klog.Logger{}, q.pod.Spec.Tolerations, &cordoned, true) {
		return append(found, Cause{Kind: Cordoned})
	}
	hard := func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}
	taint, refused := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, q.pod.Spec.Tolerations, hard, true)
	if refused {
		t := &Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)}
		if taint.TimeAdded != nil {
			since := taint.TimeAdded.UTC()
			t.Since = &since
		}
		found = append(found, Cause{Kind: NodeTaint, Taint: t})
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
