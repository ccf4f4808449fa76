// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// What a pod prefers does not outweigh GPUs, and decides among nodes that are equal by them. So of those, some of each kind are left to the
// other plugins, which score them.

// soft is what a pod prefers of nodes.
type soft struct {
	affinity *nodeaffinity.PreferredSchedulingTerms
	terms    []podTerm
	// controller is the pod's, where kube-scheduler spreads its pods over zones by itself (podtopologyspread, systemDefaultConstraints).
	controller types.UID
	zones      map[string]int // pods of the controller by zone
	taints     bool
	images     []string
}

// softOf is nil for pods to which the nodes are all one.
func softOf(pod *corev1.Pod, nodes []framework.NodeInfo) *soft {
	s := &soft{zones: map[string]int{}}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		// A term that is not valid refuses the pod elsewhere.
		s.affinity, _ = nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	s.terms = preferredTerms(pod)
	zones := map[string]bool{}
	for _, n := range nodes {
		node := n.Node()
		if node == nil {
			continue
		}
		zones[node.Labels[corev1.LabelTopologyZone]] = true
		for i := range node.Spec.Taints {
			s.taints = s.taints || avoided(&node.Spec.Taints[i])
		}
		if len(s.images) == 0 && len(n.GetImageStates()) > 0 {
			s.images = imagesOf(pod)
		}
	}
	if c := metav1.GetControllerOfNoCopy(pod); c != nil && len(zones) > 1 && len(pod.Spec.TopologySpreadConstraints) == 0 {
		s.controller = c.UID
	}
	if s.affinity == nil && len(s.terms) == 0 && !s.taints && len(s.images) == 0 && s.controller == "" {
		return nil
	}
	return s
}

func avoided(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectPreferNoSchedule }

// imagesOf are the names of a pod's images as nodes have them.
func imagesOf(pod *corev1.Pod) (names []string) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			name := containers[i].Image
			if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
				name += ":latest"
			}
			names = append(names, name)
		}
	}
	return names
}

// preferredTerms are those of topology spread, pod affinity and pod anti-affinity that are not required.
func preferredTerms(pod *corev1.Pod) (all []podTerm) {
	for i := range pod.Spec.TopologySpreadConstraints {
		if c := &pod.Spec.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == corev1.ScheduleAnyway {
			all = addTerm(all, c.TopologyKey, c.LabelSelector, true, []string{pod.Namespace})
		}
	}
	var terms []corev1.WeightedPodAffinityTerm
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range terms {
		all = addAffinityTerm(all, pod, &terms[i].PodAffinityTerm, true)
	}
	return all
}

// count counts the pods of a node.
func (s *soft) count(n framework.NodeInfo) {
	countTerms(s.terms, n)
	if s.controller == "" {
		return
	}
	for _, other := range n.GetPods() {
		if c := metav1.GetControllerOfNoCopy(other.GetPod()); c != nil && c.UID == s.controller && other.GetPod().DeletionTimestamp == nil {
			s.zones[n.Node().Labels[corev1.LabelTopologyZone]]++
		}
	}
}

// group is the same for nodes that a pod likes alike.
func (s *soft) group(logger klog.Logger, pod *corev1.Pod, n framework.NodeInfo) string {
	node := n.Node()
	parts := termParts(nil, node, s.terms)
	if s.affinity != nil {
		parts = append(parts, fmt.Sprint("affinity ", s.affinity.Score(node)))
	}
	if s.controller != "" {
		parts = append(parts, fmt.Sprint("zone ", s.zones[node.Labels[corev1.LabelTopologyZone]]))
	}
	if s.taints {
		_, refused := schedulinghelpers.FindMatchingUntoleratedTaint(logger, node.Spec.Taints, pod.Spec.Tolerations, avoided, false)
		parts = append(parts, fmt.Sprint("taint ", refused))
	}
	if len(s.images) > 0 {
		there := 0
		for _, name := range s.images {
			if n.GetImageStates()[name] != nil {
				there++
			}
		}
		parts = append(parts, fmt.Sprint("images ", there))
	}
	return strings.Join(parts, ",")
}
