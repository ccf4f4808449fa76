// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

func TestWithGroups(t *testing.T) {
	var all []candidate
	for i := range 9 {
		all = append(all, candidate{node: fmt.Sprint("n", i+1)})
	}
	three := map[string]string{"n7": "b", "n8": "b", "n9": "c"}
	for _, tt := range []struct {
		most   int
		groups map[string]string
		want   string
	}{
		{1, map[string]string{}, "n1 n2"},
		{4, map[string]string{}, "n1 n2 n3 n4"},
		{1, three, "n1 n2 n7 n8 n9"},
		{7, three, "n1 n2 n3 n4 n5 n6 n7 n8 n9"},
		{2, map[string]string{"n1": "b", "n2": "b", "n3": "b", "n9": "b"}, "n1 n2 n4 n5"},
	} {
		var got []string
		for _, c := range withGroups(all, &groups{hard: tt.groups}, tt.most, packing.Pack.Compare) {
			got = append(got, c.node)
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%d best of %v (-want +got):\n%s", tt.most, tt.groups, diff)
		}
	}
}

type fakePod struct {
	framework.PodInfo
	pod *corev1.Pod
}

func (p fakePod) GetPod() *corev1.Pod { return p.pod }

// TestPreFilter_Groups: eight nodes in four zones, of which the first four have a pod of app web. What depends on other pods or
// on volumes sees nodes of each kind; everything else the two best.
func TestPreFilter_Groups(t *testing.T) {
	b := newBed(t, `{"candidates": 1}`)
	b.addNodes("hgx-h100", eight...)
	for i, n := range b.nodes {
		node := n.(*fakeNode)
		node.node.Labels[corev1.LabelTopologyZone] = fmt.Sprint("zone-", i/2)
		web := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{"app": "web"}}}
		if i == 5 {
			web.Namespace = "other"
		}
		if i < 4 || i == 5 {
			node.pods = append(node.pods, fakePod{pod: web})
		}
	}
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	spread := func(key string, when corev1.UnsatisfiableConstraintAction) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = append(s.TopologySpreadConstraints,
				corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: when, LabelSelector: web})
		}
	}
	terms := func(key string, namespaces ...string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: web, Namespaces: namespaces}}
	}
	for _, tt := range []struct {
		what, want string
		change     func(*corev1.PodSpec)
	}{
		{"nothing", "n1", func(*corev1.PodSpec) {}},
		{"a volume", "n1 n2 n3 n4 n5 n6 n7 n8", func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}},
		{"a generic volume", "n1 n2 n3 n4 n5 n6 n7 n8", func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		}},
		{"another volume", "n1", func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}},
		{"spread over nodes", "n1 n2 n5 n6", spread(corev1.LabelHostname, corev1.DoNotSchedule)},
		{"spread over zones", "n1 n2 n5 n6", spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)},
		{"spread if possible", "n1 n2 n5 n6", spread(corev1.LabelTopologyZone, corev1.ScheduleAnyway)},
		{"spread over what nodes do not have", "n1 n2", spread("rack", corev1.DoNotSchedule)},
		{"apart from web", "n1 n2 n5 n6", func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelHostname)}}
		}},
		{"near web of another namespace", "n1 n2 n6", func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelHostname, "other")}}
		}},
		{"near web of any namespace", "n1 n2 n5 n7", func(s *corev1.PodSpec) {
			near := terms(corev1.LabelHostname)
			near[0].NamespaceSelector = &metav1.LabelSelector{}
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: near}}
		}},
		{"near web if possible", "n1 n2 n5 n6", func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{Weight: 1, PodAffinityTerm: terms(corev1.LabelHostname)[0]},
			}}}
		}},
		{"spread over zones, near web of another namespace", "n1 n2 n5 n6 n7", func(s *corev1.PodSpec) {
			spread(corev1.LabelTopologyZone, corev1.DoNotSchedule)(s)
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelHostname, "other")}}
		}},
	} {
		pod := b.pod("pod", "gpu")
		tt.change(&pod.Spec)
		if _, got := b.preFilter(pod); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
}
