// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

const namespace = metav1.NamespaceDefault

// addClasses creates the DeviceClasses of the manifests.
func (b *bed) addClasses() {
	b.t.Helper()
	classes, err := packing.Classes(filepath.Join("..", "..", "deployments", "manifests"))
	must(b.t, err)
	for _, c := range classes {
		must(b.t, errOf(b.kube.ResourceV1().DeviceClasses().Create(b.t.Context(), c, metav1.CreateOptions{})))
	}
}

// addNodes creates nodes of 8 H100, with their slices.
func (b *bed) addNodes(names ...string) {
	b.t.Helper()
	for _, name := range names {
		b.addNode(name)
		list := slicesOf(b, name)
		for i := range list.Items {
			must(b.t, errOf(b.kube.ResourceV1().ResourceSlices().Create(b.t.Context(), &list.Items[i], metav1.CreateOptions{})))
		}
	}
}

// addNode creates a node without slices.
func (b *bed) addNode(name string) {
	b.t.Helper()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("128"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("500"),
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}, Status: corev1.NodeStatus{
		Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	must(b.t, errOf(b.kube.CoreV1().Nodes().Create(b.t.Context(), node, metav1.CreateOptions{})))
}

// slicesOf are what a node of 8 H100 publishes where everything is counted.
func slicesOf(b *bed, name string) *resourceapi.ResourceSliceList {
	b.t.Helper()
	inventory, err := packing.Inventory(b.t.Context(), "hgx-h100")
	must(b.t, err)
	return nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, inventory.Node, policy.Capabilities{}), v1alpha1.Group, name)
}

// addPods creates pods, each with a claim for a device of a class.
func (b *bed) addPods(prefix, class string, n int, change ...func(*corev1.Pod)) {
	b.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: workload.ClaimSpec(class, 1)}
		must(b.t, errOf(b.kube.ResourceV1().ResourceClaims(namespace).Create(b.t.Context(), claim, metav1.CreateOptions{})))
		pod := podWith(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &name})
		pod.Name, pod.Labels = name, map[string]string{"app": prefix}
		for _, c := range change {
			c(pod)
		}
		must(b.t, errOf(b.kube.CoreV1().Pods(namespace).Create(b.t.Context(), pod, metav1.CreateOptions{})))
	}
}

func podWith(claims ...corev1.PodResourceClaim) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		SchedulerName: "cleave-scheduler", Containers: []corev1.Container{{Name: "c", Image: "i"}}, ResourceClaims: claims,
	}}
	for _, c := range claims {
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c.Name})
	}
	return pod
}

// scheduled waits until so many pods have a node, and returns how many each has.
func (b *bed) scheduled(n int) map[string]int {
	b.t.Helper()
	var nodes map[string]int
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err := workload.Until(ctx, fmt.Sprintf("%d pods with a node", n), func(ctx context.Context) (bool, string, error) {
		pods, err := b.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		count := 0
		nodes = map[string]int{}
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName != "" {
				nodes[pods.Items[i].Spec.NodeName]++
				count++
			}
		}
		return count >= n, fmt.Sprintf("%d have", count), nil
	})
	if err != nil {
		b.t.Fatalf("%v; the scheduler's log ends with:\n%s", err, b.scheduler.LogTail(20))
	}
	return nodes
}

// gpus are the GPUs that have devices which are allocated. It checks that of no device or counter more is allocated than there is.
func (b *bed) gpus() map[string]int {
	b.t.Helper()
	list, err := b.kube.ResourceV1().ResourceSlices().List(b.t.Context(), metav1.ListOptions{})
	must(b.t, err)
	var published []*resourceapi.ResourceSlice
	for i := range list.Items {
		published = append(published, &list.Items[i])
	}
	allocated := b.results()
	gpus := map[string]int{}
	for _, r := range allocated {
		gpus[r.Pool+"/"+packing.GPUOf(r.Device)]++
	}
	if over := packing.OverAllocated(published, allocated); len(over) > 0 {
		b.t.Errorf("more is allocated than there is of %v", over)
	}
	return gpus
}

func (b *bed) results() (allocated []resourceapi.DeviceRequestAllocationResult) {
	b.t.Helper()
	claims, err := b.kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(b.t.Context(), metav1.ListOptions{})
	must(b.t, err)
	for i := range claims.Items {
		if a := claims.Items[i].Status.Allocation; a != nil {
			allocated = append(allocated, a.Devices.Results...)
		}
	}
	return allocated
}

func TestScheduler_OneNode(t *testing.T) {
	b := newBed(t, "n1")
	b.startScheduler("{}")
	b.addPods("small", "mig-1g.10gb.cleave.dev", 15)
	b.addPods("whole", "gpu.cleave.dev", 5)
	b.scheduled(20)
	if got := b.gpus(); len(got) != 8 {
		t.Errorf("15 partitions and 5 GPUs are on %d GPUs, want all 8: %v", len(got), got)
	}
	b.addPods("more", "gpu.cleave.dev", 1) // waits for ever, and keeps nobody else from being placed
	b.addPods("last", "mig-1g.10gb.cleave.dev", 6)
	b.scheduled(26)
	b.free("whole-0")
	b.scheduled(27)
	b.gpus()
}

// free takes a claim's devices away, as a controller does for a pod that has ended.
func (b *bed) free(name string) {
	b.t.Helper()
	claims := b.kube.ResourceV1().ResourceClaims(namespace)
	claim, err := claims.Get(b.t.Context(), name, metav1.GetOptions{})
	must(b.t, err)
	claim.Status.Allocation, claim.Status.ReservedFor = nil, nil
	must(b.t, errOf(claims.UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{})))
}

func TestScheduler_FourNodes(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3", "n4")
	b.startScheduler(`{"candidates": 2, "strategies": {"mig-3g.40gb.cleave.dev": "spread"}}`)
	b.addPods("small", "mig-1g.10gb.cleave.dev", 60)
	placed := b.scheduled(60)
	if diff := cmp.Diff([]int{4, 56}, slices.Sorted(maps.Values(placed))); diff != "" {
		t.Errorf("nodes of 60 partitions (-want +got):\n%s", diff)
	}
	if got := b.gpus(); len(got) != 9 {
		t.Errorf("60 partitions are on %d GPUs, want 9: %v", len(got), got)
	}
	if n := b.logged("Limited the allocator to the devices of candidates"); n < 60 {
		t.Errorf("the allocator was limited to the devices of two nodes for %d of 60 pods", n)
	}
	b.addPods("spread", "mig-3g.40gb.cleave.dev", 3, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "spread", UID: "spread", Controller: new(true)},
		}
	})
	b.scheduled(63)
	replicas := b.nodesOf("spread") // one node is full
	if diff := cmp.Diff([]int{1, 1, 1}, slices.Sorted(maps.Values(replicas))); diff != "" {
		t.Errorf("three replicas that spread, after %v, are on %v (-want +got):\n%s", placed, replicas, diff)
	}
	// The two best nodes refuse a replica of their own pods.
	b.addPods("apart", "mig-1g.10gb.cleave.dev", 3, func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}},
			}},
		}}
	})
	b.scheduled(66)
	b.gpus()
}

// TestScheduler_NotebooksAtOnce: shares of four per GPU that are created at once are on one GPU of four nodes, or on two of one node:
// kube-scheduler 1.37 counts a share twice for a moment (docs/sharing.md).
func TestScheduler_NotebooksAtOnce(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3", "n4")
	b.startScheduler("{}")
	b.addPods("notebook", "timeslice.cleave.dev", 4)
	nodes, gpus := b.scheduled(4), b.gpus()
	t.Logf("four notebooks are on %v", gpus)
	if len(nodes) != 1 || len(gpus) > 2 {
		t.Errorf("four notebooks are on %v, want one node, and one GPU of it or two", gpus)
	}
}

// TestScheduler_Killed kills the scheduler while pods are under way. Another goes on: every pod gets its devices, and no
// device is allocated twice.
func TestScheduler_Killed(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3", "n4")
	for i := range 3 {
		b.startScheduler("{}")
		b.addPods(fmt.Sprint("small", i), "mig-1g.10gb.cleave.dev", 30)
		b.addPods(fmt.Sprint("whole", i), "gpu.cleave.dev", 4)
		b.scheduled(34*i + 5)
		must(t, b.scheduler.End(syscall.SIGKILL))
	}
	b.startScheduler("{}")
	b.scheduled(102)
	gpus := b.gpus()
	if len(gpus) > 12+14 {
		t.Errorf("90 partitions and 12 GPUs are on %d GPUs of 25 that are enough: %v", len(gpus), gpus)
	}
}

// TestScheduler_Prefers: among nodes with equal GPUs, those that pods prefer are chosen.
func TestScheduler_Prefers(t *testing.T) {
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprint("n", i+1))
	}
	b := newBed(t, names...)
	for i, n := range names {
		b.label(n, corev1.LabelTopologyZone, []string{"a", "b"}[i/6]) // n7 and n8 are in zone b
	}
	b.startScheduler("{}")
	b.addPods("whole", "gpu.cleave.dev", 12, func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}
	})
	for n := range b.scheduled(12) {
		if n != "n7" && n != "n8" {
			t.Errorf("a pod that prefers zone b is on %s", n)
		}
	}
}
