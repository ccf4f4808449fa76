// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// fallbacks is how many attempts failed on the best nodes, so that the next one saw all.
func (b *bed) fallbacks() int { return b.logged("None of the best nodes will do") }

// logged is how often the scheduler's log says something.
func (b *bed) logged(text string) int { return len(lines(b, text)) }

// lines are those of the scheduler's log that have a text.
func lines(b *bed, text string) (found []string) {
	b.t.Helper()
	log, err := os.ReadFile(filepath.Join(b.dir, "cleave-scheduler.log"))
	must(b.t, err)
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// TestScheduler_ExtendedResource: pods that ask for GPUs by an extended resource have no claim until they are bound. What they
// get counts before, so that the next are not sent to GPUs that are gone.
func TestScheduler_ExtendedResource(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3", "n4")
	b.startScheduler(`{"candidates": 1}`)
	name := corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix + "gpu.cleave.dev")
	for i := range 32 {
		pod := podWith()
		pod.GenerateName = "extended-"
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse("1")}
		if _, err := b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatalf("pod %d: %v", i, err)
		}
	}
	if diff := cmp.Diff(map[string]int{"n1": 8, "n2": 8, "n3": 8, "n4": 8}, b.scheduled(32)); diff != "" {
		t.Errorf("nodes of 32 GPUs (-want +got):\n%s", diff)
	}
	if got := b.gpus(); len(got) != 32 {
		t.Errorf("32 pods have %d GPUs", len(got))
	}
	if n := b.fallbacks(); n > 0 {
		t.Errorf("%d attempts failed on the best nodes", n)
	}
}

// TestScheduler_RestrictedPods: what other pods and volumes rule out is known at the first attempt, although the best nodes are
// all in one zone. Three zones have two nodes each.
func TestScheduler_RestrictedPods(t *testing.T) {
	b := newBed(t)
	zones := map[string]string{"n1": "a", "n2": "a", "n3": "b", "n4": "b", "n5": "c", "n6": "c"}
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		b.addNodes(name)
		b.label(name, corev1.LabelTopologyZone, zones[name])
	}
	b.startScheduler(`{"candidates": 1}`)
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	perZone := func(prefix string) map[string]int {
		found := map[string]int{}
		for node, n := range b.nodesOf(prefix) {
			found[zones[node]] += n
		}
		return found
	}
	spread := func(app, key string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector(app)},
			}
		}
	}
	b.addPods("zones", "mig-1g.10gb.cleave.dev", 9, spread("zones", corev1.LabelTopologyZone))
	b.scheduled(9)
	if diff := cmp.Diff(map[string]int{"a": 3, "b": 3, "c": 3}, perZone("zones")); diff != "" {
		t.Errorf("spread over zones (-want +got):\n%s", diff)
	}
	b.addPods("apart", "mig-1g.10gb.cleave.dev", 6, func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: selector("apart")},
		}}}
	})
	b.scheduled(15)
	b.addPods("cache", "mig-1g.10gb.cleave.dev", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "c"} })
	b.scheduled(16)
	b.addPods("near", "mig-1g.10gb.cleave.dev", 3, func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelTopologyZone, LabelSelector: selector("cache")},
		}}}
	})
	b.scheduled(19)
	if diff := cmp.Diff(map[string]int{"c": 3}, perZone("near")); diff != "" {
		t.Errorf("near the pod of zone c (-want +got):\n%s", diff)
	}
	addVolume(b, "disk", "c")
	b.addPods("volume", "mig-1g.10gb.cleave.dev", 1, mounting("disk"))
	b.scheduled(20)
	if diff := cmp.Diff(map[string]int{"c": 1}, perZone("volume")); diff != "" {
		t.Errorf("with a volume of zone c (-want +got):\n%s", diff)
	}
	if n := b.fallbacks(); n > 0 {
		t.Errorf("%d attempts failed on the best nodes", n)
	}
}

// nodesOf is how many pods of an app each node has.
func (b *bed) nodesOf(app string) map[string]int {
	b.t.Helper()
	pods, err := b.kube.CoreV1().Pods(namespace).List(b.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	must(b.t, err)
	found := map[string]int{}
	for i := range pods.Items {
		found[pods.Items[i].Spec.NodeName]++
	}
	return found
}

func (b *bed) label(node, key, value string) {
	b.t.Helper()
	must(b.t, workload.Client{Kube: b.kube}.LabelNode(b.t.Context(), node, key, &value))
}

// mounting has a pod mount the volume of a claim.
func mounting(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	}
}

// addVolume creates a volume of a zone and a claim that has it, as controllers bind them.
func addVolume(b *bed, name, zone string) { addVolumeOf(b, name, corev1.LabelTopologyZone, zone) }

func addVolumeOn(b *bed, name, node string) { addVolumeOf(b, name, corev1.LabelHostname, node) }

func addVolumeOf(b *bed, name, label, value string) {
	b.t.Helper()
	ctx, size := b.t.Context(), corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim, err := b.kube.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeName: name, StorageClassName: new(string),
		},
	}, metav1.CreateOptions{})
	must(b.t, err)
	_, err = b.kube.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}},
			}}},
		},
	}, metav1.CreateOptions{})
	must(b.t, err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = b.kube.CoreV1().PersistentVolumeClaims(namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	must(b.t, err)
}
