// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-scheduler/framework"
)

// alternatives makes the request of a claim one of some classes.
func alternatives(classes ...string) func(*resourceapi.ResourceClaimSpec) {
	return func(s *resourceapi.ResourceClaimSpec) {
		s.Devices.Requests[0].Exactly = nil
		for _, c := range classes {
			s.Devices.Requests[0].FirstAvailable = append(s.Devices.Requests[0].FirstAvailable,
				resourceapi.DeviceSubRequest{Name: "as-" + c[:1], DeviceClassName: c})
		}
	}
}

// TestPreFilter_Alternatives: nodes that have the preferred alternative come first, however much it costs there. Among them, packing decides.
func TestPreFilter_Alternatives(t *testing.T) {
	b := newBed(t, `{"candidates": 1}`)
	b.addNodes("gh200", "n1", "n2")
	pod := b.pod("x", "", alternatives("gpu", "1g.12gb"))
	b.place(b.pod("a", "1g.12gb")) // on n1
	if _, got := b.preFilter(pod); got != "n2" {
		t.Errorf("got %s, want the node with a whole GPU", got)
	}
	b.place(b.pod("b", "gpu")) // on n2
	if _, got := b.preFilter(pod); got != "n1" {
		t.Errorf("got %s, want the node with a partition", got)
	}
	if _, got := b.preFilter(b.pod("y", "", alternatives("gpu", "7g.96gb"))); got != framework.UnschedulableAndUnresolvable.String() {
		t.Errorf("got %s where no alternative fits", got)
	}
	if _, got := b.preFilter(b.pod("z", "", alternatives("5g.50gb", "1g.12gb"))); got != "n1" {
		t.Errorf("got %s where no node has the first alternative", got)
	}
}

// TestPreFilter_AlternativeElsewhere: the allocator decides where an alternative is for devices of no node.
func TestPreFilter_AlternativeElsewhere(t *testing.T) {
	b := newBed(t, `{"candidates": 4}`)
	b.addNodes("gh200", "n1")
	b.publish(&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "remote"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "nic.example.com", AllNodes: new(true), Pool: resourceapi.ResourcePool{Name: "remote", ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "remote-0"}},
	}})
	pod := b.pod("x", "", alternatives("gpu", "nic"))
	if _, got := b.preFilter(pod); got != "n1" {
		t.Errorf("got %s with a GPU free, want its node", got)
	}
	b.place(b.pod("a", "gpu"))
	if _, got := b.preFilter(pod); got != framework.Skip.String() {
		t.Errorf("got %s with no GPU free, want all nodes", got)
	}
}

// TestPreFilter_Constraints: two partitions of one GPU, where one node has its free ones on two.
func TestPreFilter_Constraints(t *testing.T) {
	b := newBed(t, `{"candidates": 4}`)
	b.addNodes("hgx-h100", "n1", "n2")
	for i := range 8 { // of n1
		if node, _ := b.place(b.pod(fmt.Sprint("filler-", i), "4g.40gb")); node != "n1" {
			t.Fatalf("filler %d is on %s", i, node)
		}
	}
	constrained := func(distinct bool) func(*resourceapi.ResourceClaimSpec) {
		return func(s *resourceapi.ResourceClaimSpec) {
			s.Devices.Requests[0].Exactly.Count = 2
			attribute := resourceapi.FullyQualifiedName("gpu.cleave.dev/parentUUID")
			c := resourceapi.DeviceConstraint{MatchAttribute: &attribute}
			if distinct {
				c = resourceapi.DeviceConstraint{DistinctAttribute: &attribute}
			}
			s.Devices.Constraints = []resourceapi.DeviceConstraint{c}
		}
	}
	for class, want := range map[string]string{"3g.40gb": "n2", "1g.10gb": "n1 n2"} {
		if _, got := b.preFilter(b.pod("x", class, constrained(false))); got != want {
			t.Errorf("two %s of one GPU: got %s, want %s", class, got, want)
		}
	}
	if _, got := b.preFilter(b.pod("y", "3g.40gb", constrained(true))); got != "n1 n2" {
		t.Errorf("two 3g.40gb of two GPUs: got %s, want both nodes", got)
	}
	if _, got := b.preFilter(b.pod("z", "gpu", constrained(false))); got != framework.UnschedulableAndUnresolvable.String() {
		t.Errorf("whole GPUs have no parent: got %s", got)
	}
}

// TestPreFilter_SeveralDrivers: a GPU with a NIC goes where both are free, and where the GPU is missed least.
func TestPreFilter_SeveralDrivers(t *testing.T) {
	b := newBed(t, `{"candidates": 4}`)
	b.addNodes("gh200", "n1", "n2", "n3")
	b.addNode("cpu")
	for _, node := range []string{"n2", "n3", "cpu"} { // one without GPUs
		b.publish(&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "nic-" + node}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "nic.example.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: "nics-" + node, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "nic-0"}},
		}})
	}
	withNIC := func(s *resourceapi.ResourceClaimSpec) {
		s.Devices.Requests = append(s.Devices.Requests, resourceapi.DeviceRequest{
			Name: "nic", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "nic"},
		})
	}
	if _, got := b.preFilter(b.pod("x", "1g.12gb", withNIC)); got != "n2 n3" {
		t.Fatalf("got %s, want the nodes with NICs", got)
	}
	b.pod("holder", "1g.12gb")
	b.claims["holder"].Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "nic", Driver: "nic.example.com", Pool: "nics-n2", Device: "nic-0"}},
	}}
	b.pending[b.claims["holder"].UID] = b.claims["holder"].Status.Allocation
	b.store("holder")
	state, got := b.preFilter(b.pod("x", "1g.12gb", withNIC))
	if got != "n3" {
		t.Errorf("got %s, want the node whose NIC is free", got)
	}
	if cost := read(state).costs["n3"]; cost.Lost == 0 {
		t.Errorf("the GPU's part costs nothing: %+v", cost)
	}
}

// TestPreFilter_Resources: nodes without what a pod asks for besides devices are not among the best.
func TestPreFilter_Resources(t *testing.T) {
	const rdma = corev1.ResourceName("rdma/hca")
	requests := func(name corev1.ResourceName, amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse(amount)}}}}
		}
	}
	port := func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 8080}}}}
	}
	for _, c := range []struct {
		name  string
		first func(n *fakeNode) // what n1 is like
		pod   func(*corev1.Pod)
		want  string
	}{
		{"none of it", func(*fakeNode) {}, requests(rdma, "1"), "n2"},
		{"too little", func(n *fakeNode) { n.scalars = map[corev1.ResourceName]int64{rdma: 1} }, requests(rdma, "2"), "n2"},
		{"used", func(n *fakeNode) {
			n.scalars, n.used = map[corev1.ResourceName]int64{rdma: 4}, map[corev1.ResourceName]int64{rdma: 4}
		}, requests(rdma, "1"), "n2"},
		{"enough", func(n *fakeNode) {
			n.scalars, n.used = map[corev1.ResourceName]int64{rdma: 4}, map[corev1.ResourceName]int64{rdma: 3}
		}, requests(rdma, "1"), "n1 n2"},
		{"what no node has", func(*fakeNode) {}, requests("example.com/ignored", "1"), "n1 n2"},
		{"hugepages", func(*fakeNode) {}, requests("hugepages-2Mi", "2Mi"), "n2"},
		{"ephemeral storage used", func(n *fakeNode) { n.used = map[corev1.ResourceName]int64{corev1.ResourceEphemeralStorage: 1 << 30} }, requests(corev1.ResourceEphemeralStorage, "1Mi"), "n2"},
		{"host port used", func(n *fakeNode) {
			n.ports = framework.HostPortInfo{}
			n.ports.Add("", "TCP", 8080)
		}, port, "n2"},
		{"another host port", func(n *fakeNode) {
			n.ports = framework.HostPortInfo{}
			n.ports.Add("", "TCP", 8081)
		}, port, "n1 n2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, "")
			b.addNodes("gh200", "n1", "n2")
			c.first(b.nodes[0].(*fakeNode))
			b.nodes[1].(*fakeNode).scalars = map[corev1.ResourceName]int64{rdma: 4, "hugepages-2Mi": 1 << 30}
			pod := b.pod("x", "gpu")
			c.pod(pod)
			if _, got := b.preFilter(pod); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestPreFilter_Volumes: a pod goes where the volume of its claim is, or one that the claim may get.
func TestPreFilter_Volumes(t *testing.T) {
	local := func(name, node, class, size string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}},
			}}},
		}}
	}
	classOf := func(name, provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	}
	for _, c := range []struct {
		name          string
		volume, class string // of the claim
		selector      map[string]string
		change        func(all []*corev1.PersistentVolume)
		want          string
	}{
		{name: "bound", volume: "on-n2", class: "local", want: "n2"},
		{name: "bound to what is not known", volume: "missing", class: "local", want: "n1 n2 n3"},
		{name: "one is large enough", class: "local", want: "n2"},
		{name: "provisioned", class: "csi", want: "n1 n2 n3"},
		{name: "of another claim", class: "local", change: func(all []*corev1.PersistentVolume) {
			all[1].Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "other"}
		}, want: framework.Skip.String()},
		{name: "of another mode", class: "local", change: func(all []*corev1.PersistentVolume) {
			all[1].Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		}, want: framework.Skip.String()},
		{name: "failed", class: "local", change: func(all []*corev1.PersistentVolume) { all[1].Status.Phase = corev1.VolumeFailed }, want: framework.Skip.String()},
		{name: "selected by a label", class: "local", selector: map[string]string{"disk": "fast"}, change: func(all []*corev1.PersistentVolume) {
			all[2].Labels, all[2].Spec.StorageClassName = map[string]string{"disk": "fast"}, "local"
		}, want: "n3"},
		{name: "a class by annotation", class: "local", change: func(all []*corev1.PersistentVolume) {
			all[1].Annotations, all[1].Spec.StorageClassName = map[string]string{corev1.BetaStorageClassAnnotation: "local"}, ""
		}, want: "n2"},
		{name: "a node by another label", class: "local", change: func(all []*corev1.PersistentVolume) {
			e := &all[1].Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
			e.Operator, e.Values = corev1.NodeSelectorOpNotIn, []string{"n1", "n2"}
		}, want: "n3"},
		{name: "used anywhere", class: "local", change: func(all []*corev1.PersistentVolume) { all[1].Spec.NodeAffinity = nil }, want: "n1 n2 n3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, "")
			b.addNodes("gh200", "n1", "n2", "n3")
			all := []*corev1.PersistentVolume{local("on-n1", "n1", "local", "1Gi"), local("on-n2", "n2", "local", "8Gi"), local("on-n3", "n3", "other", "8Gi")}
			if c.change != nil {
				c.change(all)
			}
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default"}, Spec: corev1.PersistentVolumeClaimSpec{
				VolumeName: c.volume, StorageClassName: &c.class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Gi")}},
			}}
			if c.selector != nil {
				claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: c.selector}
			}
			core := b.informers.Core().V1()
			for _, v := range all {
				must(t, core.PersistentVolumes().Informer().GetIndexer().Add(v))
			}
			must(t, core.PersistentVolumeClaims().Informer().GetIndexer().Add(claim))
			for _, s := range []*storagev1.StorageClass{classOf("local", noProvisioner), classOf("other", noProvisioner), classOf("csi", "csi.example.com")} {
				must(t, b.informers.Storage().V1().StorageClasses().Informer().GetIndexer().Add(s))
			}
			pod := b.pod("x", "gpu")
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
			if _, got := b.preFilter(pod); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// must ends the test with an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
