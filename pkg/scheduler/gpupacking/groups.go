// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kube-scheduler/framework"
)

// Volumes and other pods may rule out all of a pod's best nodes, if these are in one zone or have replicas of it. So the nodes
// of such a pod are grouped by what those plugins go by, and the best of each group are left to the allocator, too.

// perGroup is how many nodes of a group are.
const perGroup = 2

// withGroups are the best nodes and the best of each group, in their order. All are sorted, the best first.
func withGroups(all []candidate, groups map[string]string, most int) []candidate {
	var found []candidate
	taken := map[string]int{}
	for i, c := range all {
		group := groups[c.node]
		if i < most || taken[group] < perGroup {
			taken[group]++
			found = append(found, c)
		}
	}
	return found
}

// podTerm is a required term of a pod about other pods.
type podTerm struct {
	key        string // of the topology
	selector   labels.Selector
	namespaces []string // nil: all
	exact      bool     // how many pods there are matters, not only whether there are any
	counts     map[string]int
}

// groupsOf are the groups of nodes for a pod, by the name of the node; nil for pods whose nodes only depend on themselves.
func groupsOf(pod *corev1.Pod, nodes []framework.NodeInfo) map[string]string {
	terms, zonal := termsOf(pod), hasVolumes(pod)
	if len(terms) == 0 && !zonal {
		return nil
	}
	for _, n := range nodes {
		node := n.Node()
		if node == nil {
			continue
		}
		for i := range terms {
			value, ok := node.Labels[terms[i].key]
			if !ok {
				continue
			}
			for _, other := range n.GetPods() {
				if terms[i].matches(other.GetPod()) {
					terms[i].counts[value]++
				}
			}
		}
	}
	groups := make(map[string]string, len(nodes))
	for _, n := range nodes {
		if node := n.Node(); node != nil {
			groups[node.Name] = groupOf(node, terms, zonal)
		}
	}
	return groups
}

func groupOf(node *corev1.Node, terms []podTerm, zonal bool) string {
	var parts []string
	if zonal {
		parts = append(parts, "zone "+node.Labels[corev1.LabelTopologyZone])
	}
	for i := range terms {
		value, ok := node.Labels[terms[i].key]
		switch n := terms[i].counts[value]; {
		case !ok:
			parts = append(parts, "none")
		case terms[i].exact:
			parts = append(parts, strconv.Itoa(n))
		default:
			parts = append(parts, fmt.Sprint(n > 0))
		}
	}
	return strings.Join(parts, ",")
}

// termsOf are what topology spread, pod affinity and pod anti-affinity require.
func termsOf(pod *corev1.Pod) []podTerm {
	var all []podTerm
	add := func(key string, selector *metav1.LabelSelector, exact bool, namespaces []string) {
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return // the plugin of the term refuses the pod
		}
		all = append(all, podTerm{key: key, selector: s, namespaces: namespaces, exact: exact, counts: map[string]int{}})
	}
	for i := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == corev1.DoNotSchedule {
			add(c.TopologyKey, c.LabelSelector, true, []string{pod.Namespace})
		}
	}
	var terms []corev1.PodAffinityTerm
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range terms {
		namespaces := terms[i].Namespaces
		if terms[i].NamespaceSelector != nil {
			namespaces = nil // labels of namespaces are not known here
		} else if len(namespaces) == 0 {
			namespaces = []string{pod.Namespace}
		}
		add(terms[i].TopologyKey, terms[i].LabelSelector, false, namespaces)
	}
	return all
}

func (t *podTerm) matches(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil && t.exact {
		return false // topology spread does not count those that end
	}
	if t.namespaces != nil && !slices.Contains(t.namespaces, pod.Namespace) {
		return false
	}
	return t.selector.Matches(labels.Set(pod.Labels))
}

// replicasOn is how many pods of a pod's controller are on each node that has any, those included that are about to be bound.
// As with topology spread, those that end do not count.
func replicasOn(nodes []framework.NodeInfo, pod *corev1.Pod) map[string]int {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return nil
	}
	found := map[string]int{}
	for _, n := range nodes {
		node := n.Node()
		if node == nil {
			continue
		}
		for _, info := range n.GetPods() {
			other := info.GetPod()
			if other.Namespace != pod.Namespace || other.DeletionTimestamp != nil {
				continue
			}
			if c := metav1.GetControllerOfNoCopy(other); c != nil && c.UID == controller.UID {
				found[node.Name]++
			}
		}
	}
	return found
}

func hasVolumes(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
	}
	return false
}
