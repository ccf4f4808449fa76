// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/workload"
)

func (b *bed) addPodOf(name string, spec resourceapi.ResourceClaimSpec, change ...func(*corev1.Pod)) {
	b.t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	must(b.t, errOf(b.kube.ResourceV1().ResourceClaims(namespace).Create(b.t.Context(), claim, metav1.CreateOptions{})))
	pod := podWith(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &name})
	pod.Name, pod.Labels = name, map[string]string{"app": name}
	for _, c := range change {
		c(pod)
	}
	must(b.t, errOf(b.kube.CoreV1().Pods(namespace).Create(b.t.Context(), pod, metav1.CreateOptions{})))
}

// addNICs publishes four NICs of a node, close to a NUMA node.
func addNICs(b *bed, node string, numa int64) {
	b.t.Helper()
	var devices []resourceapi.Device
	for i := range 4 {
		devices = append(devices, resourceapi.Device{Name: fmt.Sprint("nic-", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/numaNode": {IntValue: &numa},
		}})
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nic-" + node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "nic.example.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: "nic-" + node, ResourceSliceCount: 1},
		Devices: devices,
	}}
	must(b.t, errOf(b.kube.ResourceV1().ResourceSlices().Create(b.t.Context(), slice, metav1.CreateOptions{})))
}

func addNICClass(b *bed) {
	b.t.Helper()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "nic.example.com"`}}},
	}}
	must(b.t, errOf(b.kube.ResourceV1().DeviceClasses().Create(b.t.Context(), class, metav1.CreateOptions{})))
}

// withNIC is a claim for a device of a class and a NIC, of one NUMA node or any.
func withNIC(class string, oneNUMANode bool) resourceapi.ResourceClaimSpec {
	spec := workload.ClaimSpec(class, 1)
	spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{
		Name: "nic", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "nic"},
	})
	if oneNUMANode {
		attribute := resourceapi.FullyQualifiedName("resource.kubernetes.io/numaNode")
		spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
	}
	return spec
}

// TestScheduler_FallsBack: all four candidates refuse a pod as their GPUs and NICs are of different NUMA nodes, which GPUPacking does not
// compare. The next attempt sees the fifth node, and does not wait until kube-scheduler tries all pods again (5 min).
func TestScheduler_FallsBack(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3", "n4", "n5")
	addNICClass(b)
	for _, node := range []string{"n1", "n2", "n3", "n4"} {
		addNICs(b, node, 7)
	}
	addNICs(b, "n5", 0)
	b.startScheduler("{}")
	for _, node := range []string{"n1", "n2", "n3", "n4"} { // where a GPU is in use, the next one costs less
		b.addPods("holder-"+node, "gpu.cleave.dev", 1, onNode(node))
	}
	b.scheduled(4)
	b.addPodOf("fifth", withNIC("gpu.cleave.dev", true))
	b.scheduled(5)
	if diff := cmp.Diff(map[string]int{"n5": 1}, b.nodesOf("fifth")); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	if failed, all := b.fallbacks(), b.logged(`outcome="fallback"`); failed != 1 || all != 1 {
		t.Errorf("%d attempts failed on the best nodes and %d saw all, want one each", failed, all)
	}
}

// unaided fails the test if an attempt failed on the best nodes, or fewer pods than some were narrowed to them.
func unaided(b *bed, pods int) {
	b.t.Helper()
	if n := b.logged(`outcome="narrowed"`); n < pods {
		b.t.Errorf("%d pods were narrowed to the best nodes, want %d", n, pods)
	}
	if n := b.fallbacks(); n > 0 {
		b.t.Errorf("%d attempts failed on the best nodes", n)
	}
}

// TestScheduler_Alternatives: small pods that take one of two profiles share a node, and the preferred profile wins over a fuller node.
func TestScheduler_Alternatives(t *testing.T) {
	b := newBed(t, "n1", "n2")
	b.startScheduler(`{"candidates": 1}`)
	either := func(classes ...string) (spec resourceapi.ResourceClaimSpec) {
		r := resourceapi.DeviceRequest{Name: "gpu"}
		for i, c := range classes {
			r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: fmt.Sprint("alternative-", i), DeviceClassName: c})
		}
		spec.Devices.Requests = []resourceapi.DeviceRequest{r}
		return spec
	}
	for i := range 12 {
		b.addPodOf(fmt.Sprint("small-", i), either("mig-1g.10gb.cleave.dev", "mig-1g.20gb.cleave.dev"))
	}
	if placed := b.scheduled(12); len(placed) != 1 {
		t.Errorf("12 small pods are on %v, want one node", placed)
	}
	if got := b.gpus(); len(got) != 2 {
		t.Errorf("12 small pods are on %d GPUs, want 2", len(got))
	}
	b.addPods("whole", "gpu.cleave.dev", 14)
	b.scheduled(26)
	b.addPodOf("last", either("gpu.cleave.dev", "mig-1g.10gb.cleave.dev"))
	b.scheduled(27)
	if got := requestsOf(b, "last"); !slices.Equal(got, []string{"gpu/alternative-1"}) {
		t.Errorf("with no whole GPU left, the pod has %v", got)
	}
	unaided(b, 27)
}

// requestsOf are the requests for which a claim has devices.
func requestsOf(b *bed, name string) (names []string) {
	b.t.Helper()
	claim, err := b.kube.ResourceV1().ResourceClaims(namespace).Get(b.t.Context(), name, metav1.GetOptions{})
	must(b.t, err)
	if claim.Status.Allocation != nil {
		for _, r := range claim.Status.Allocation.Devices.Results {
			names = append(names, r.Request)
		}
	}
	return names
}

// TestScheduler_GPUAndNIC: pods for a partition and a NIC are packed on the nodes that have both, in one attempt each.
func TestScheduler_GPUAndNIC(t *testing.T) {
	b := newBed(t, "n1", "n2", "n3", "n4", "n5", "n6")
	addNICClass(b)
	addNICs(b, "n5", 0)
	addNICs(b, "n6", 0)
	b.startScheduler(`{"candidates": 1}`)
	for i := range 4 {
		b.addPodOf(fmt.Sprint("nic-", i), withNIC("mig-1g.10gb.cleave.dev", i%2 == 0))
		b.running(fmt.Sprint("nic-", i))
	}
	placed := b.scheduled(4)
	if len(placed) != 1 || placed["n5"]+placed["n6"] != 4 {
		t.Errorf("pods with NICs are on %v, want n5 or n6", placed)
	}
	b.addPodOf("more", withNIC("mig-1g.10gb.cleave.dev", false)) // that node's NICs are all used
	b.scheduled(5)
	unaided(b, 5)
}

// TestScheduler_Constraints: two partitions of one GPU go where the GPU has room for both.
func TestScheduler_Constraints(t *testing.T) {
	b := newBed(t, "n1", "n2")
	b.startScheduler(`{"candidates": 1}`)
	b.addPods("filler", "mig-4g.40gb.cleave.dev", 8)
	filled := b.scheduled(8)
	if len(filled) != 1 {
		t.Fatalf("8 partitions are on %v, want one node", filled)
	}
	pair := workload.ClaimSpec("mig-3g.40gb.cleave.dev", 2)
	attribute := resourceapi.FullyQualifiedName("gpu.cleave.dev/parentUUID")
	pair.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &attribute}}
	b.addPodOf("pair", pair)
	b.scheduled(9)
	for node := range b.nodesOf("pair") {
		if filled[node] > 0 {
			t.Errorf("the pair is on %s, where no GPU has room for both", node)
		}
	}
	unaided(b, 9)
}

// TestScheduler_OtherResources: what only some nodes have is known at the first attempt: RDMA devices, hugepages, a local volume.
func TestScheduler_OtherResources(t *testing.T) {
	names := []string{"n01", "n02", "n03", "n04", "n05", "n06", "n07", "n08", "n09", "n10", "n11", "n12"}
	b := newBed(t, names...)
	for _, node := range names[4:] {
		addCapacity(b, node, `{"rdma/hca":"1","hugepages-2Mi":"1Gi"}`)
	}
	b.startScheduler(`{"candidates": 1}`)
	asks := func(name corev1.ResourceName, amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse(amount), corev1.ResourceMemory: resource.MustParse("1Mi")}
			p.Spec.Containers[0].Resources.Requests = p.Spec.Containers[0].Resources.Limits
		}
	}
	for i := range 8 { // all GPUs of a node, and its RDMA device
		b.addPodOf(fmt.Sprint("train-", i), workload.ClaimSpec("gpu.cleave.dev", 8), asks("rdma/hca", "1"))
	}
	b.scheduled(8)
	b.free("train-0")
	must(t, b.kube.CoreV1().Pods(namespace).Delete(t.Context(), "train-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	b.addPodOf("huge", workload.ClaimSpec("gpu.cleave.dev", 1), asks("hugepages-2Mi", "2Mi"))
	b.running("huge")
	addVolumeOn(b, "scratch", "n03")
	b.addPodOf("local", workload.ClaimSpec("gpu.cleave.dev", 1), mounting("scratch"))
	b.running("local")
	if diff := cmp.Diff(map[string]int{"n03": 1}, b.nodesOf("local")); diff != "" {
		t.Errorf("node of the pod with a local volume (-want +got):\n%s", diff)
	}
	unaided(b, 10)
}

// addCapacity gives a node more resources, as JSON.
func addCapacity(b *bed, node, resources string) {
	b.t.Helper()
	text := fmt.Sprintf(`{"status":{"capacity":%[1]s,"allocatable":%[1]s}}`, resources)
	must(b.t, errOf(b.kube.CoreV1().Nodes().Patch(b.t.Context(), node, types.MergePatchType, []byte(text), metav1.PatchOptions{}, "status")))
}
