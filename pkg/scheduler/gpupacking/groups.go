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
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// Volumes and other pods may rule out all of a pod's best nodes, if these are in one zone or have replicas of it. So the nodes
// of such a pod are grouped by what those plugins go by, and the best of each group are left to the allocator, too.

// perGroup is how many nodes of a group are.
const perGroup = 2

// groups are those of nodes, by name.
type groups struct {
	// hard are by what may rule out a whole group, soft by what a pod only prefers.
	hard, soft map[string]string
}

// withGroups are the best nodes, the best of each group, and of those that are as good as the best one some of each kind that the pod may
// prefer, in their order. All are sorted, the best first.
func withGroups(all []candidate, g *groups, most int, compare func(a, b packing.Cost) int) []candidate {
	var found []candidate
	hard, soft := map[string]int{}, map[string]int{}
	for i, c := range all {
		h, s := g.hard[c.node], g.soft[c.node]
		if i < most || g.hard != nil && hard[h] < perGroup || g.soft != nil && soft[s] < perGroup && compare(c.cost, all[0].cost) == 0 {
			hard[h]++
			soft[s]++
			found = append(found, c)
		}
	}
	return found
}

// podTerm is a term of a pod about other pods.
type podTerm struct {
	key        string // of the topology
	selector   labels.Selector
	namespaces []string // nil: all
	exact      bool     // how many pods there are matters, not only whether there are any
	counts     map[string]int
}

// groupsOf are the groups of nodes for a pod; nil for pods to which nodes are alike, whatever else is on them.
func groupsOf(logger klog.Logger, pod *corev1.Pod, nodes []framework.NodeInfo) *groups {
	terms, zonal, likes := termsOf(pod), hasVolumes(pod), softOf(pod, nodes)
	hard := len(terms) > 0 || zonal
	if !hard && likes == nil {
		return nil
	}
	for _, n := range nodes {
		if n.Node() == nil {
			continue
		}
		countTerms(terms, n)
		if likes != nil {
			likes.count(n)
		}
	}
	g := &groups{}
	if hard {
		g.hard = make(map[string]string, len(nodes))
	}
	if likes != nil {
		g.soft = make(map[string]string, len(nodes))
	}
	for _, n := range nodes {
		node := n.Node()
		if node == nil {
			continue
		}
		if hard {
			g.hard[node.Name] = groupOf(node, terms, zonal)
		}
		if likes != nil {
			g.soft[node.Name] = likes.group(logger, pod, n)
		}
	}
	return g
}

// countTerms counts the pods of a node that terms are about.
func countTerms(terms []podTerm, n framework.NodeInfo) {
	for i := range terms {
		value, ok := n.Node().Labels[terms[i].key]
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

func groupOf(node *corev1.Node, terms []podTerm, zonal bool) string {
	var parts []string
	if zonal {
		parts = append(parts, "zone "+node.Labels[corev1.LabelTopologyZone])
	}
	return strings.Join(termParts(parts, node, terms), ",")
}

// termParts adds what terms say of a node.
func termParts(parts []string, node *corev1.Node, terms []podTerm) []string {
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
	return parts
}

// termsOf are what topology spread, pod affinity and pod anti-affinity require.
func termsOf(pod *corev1.Pod) (all []podTerm) {
	for i := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == corev1.DoNotSchedule {
			all = addTerm(all, c.TopologyKey, c.LabelSelector, true, []string{pod.Namespace})
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
		all = addAffinityTerm(all, pod, &terms[i], false)
	}
	return all
}

func addTerm(all []podTerm, key string, selector *metav1.LabelSelector, exact bool, namespaces []string) []podTerm {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return all // the plugin of the term refuses the pod
	}
	return append(all, podTerm{key: key, selector: s, namespaces: namespaces, exact: exact, counts: map[string]int{}})
}

func addAffinityTerm(all []podTerm, pod *corev1.Pod, t *corev1.PodAffinityTerm, exact bool) []podTerm {
	namespaces := t.Namespaces
	if t.NamespaceSelector != nil {
		namespaces = nil // labels of namespaces are not known here
	} else if len(namespaces) == 0 {
		namespaces = []string{pod.Namespace}
	}
	return addTerm(all, t.TopologyKey, t.LabelSelector, exact, namespaces)
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
