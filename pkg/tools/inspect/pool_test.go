// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

const (
	testDriver = "gpu.cleave.dev"
	testNode   = "gpu-1"
)

func ptr[T any](v T) *T { return &v }

// published is what a machine publishes under a policy.
func (m *machine) published() Pool {
	m.t.Helper()
	node := policy.Apply(m.policy, m.session.Node(), policy.Capabilities{MPS: m.noMPS})
	return Pool{Node: testNode, Driver: testDriver, Slices: nodeslices.Objects(node, testDriver, testNode).Items}
}

// device finds a published device.
func device(t *testing.T, p *Pool, name string) *resourceapi.Device {
	t.Helper()
	for i := range p.Slices {
		for j := range p.Slices[i].Spec.Devices {
			if d := &p.Slices[i].Spec.Devices[j]; d.Name == name {
				return d
			}
		}
	}
	t.Fatalf("%s is not published", name)
	return nil
}

// result is a device that a claim got.
func result(name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: testDriver, Pool: testNode, Device: name}
}

func part(name, memory, cores string) resourceapi.DeviceRequestAllocationResult {
	r := result(name)
	r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"shares": resource.MustParse("1"),
		"memory": resource.MustParse(memory)}
	if cores != "" {
		r.ConsumedCapacity["cores"] = resource.MustParse(cores)
	}
	return r
}

// allocated is a claim, "namespace/name", with devices, reserved for pods.
func allocated(name string, results []resourceapi.DeviceRequestAllocationResult, pods ...string) resourceapi.ResourceClaim {
	namespace, name, _ := strings.Cut(name, "/")
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	return c
}

type results = []resourceapi.DeviceRequestAllocationResult

// busyPool is what a cluster knows of a node with every kind of allocation.
func busyPool(t *testing.T, m *machine) Pool {
	t.Helper()
	p := m.published()
	name := func(i int) string { return m.gpu(i).PCI.DeviceName() }
	admin := result(name(7))
	admin.AdminAccess = ptr(true)
	elsewhere := result(name(5))
	elsewhere.Pool = "gpu-2"
	others := result(name(5))
	others.Driver = "gpu.example.com"
	p.Claims = []resourceapi.ResourceClaim{
		allocated("ml/llm", results{result(name(0) + "-mig-9-4"), result(name(0) + "-mig-19-0")}, "llm-0"),
		allocated("dev/nb-1", results{part(name(3)+"-timeslice", "20Gi", "")}, "nb-1"),
		allocated("dev/nb-2", results{part(name(3)+"-timeslice", "40Gi", "")}, "nb-2a", "nb-2b"),
		allocated("infer/all", results{part(name(4)+"-mps", "20Gi", "100")}),
		allocated("ml/train", results{result(name(7)), result(name(6))}, "train"),
		allocated("monitoring/dcgm", results{admin}, "dcgm"),
		allocated("ml/old", results{result(name(2) + "-gone")}),
		allocated("x/elsewhere", results{elsewhere, others}),
		{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "pending"}},
	}
	occupied := resourceapi.DeviceTaint{Key: nodeslices.TaintOccupied, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	for _, s := range m.gpu(2).Shapes() {
		// What overlaps an unmanaged partition at 4 to 7.
		if !s.IsPartition() || s.Placement.Overlaps(gpu.Placement{Start: 4, Size: 4}) {
			d := device(t, &p, s.Name())
			d.Taints = append(d.Taints, occupied)
		}
	}
	for _, share := range gpu.Shares() {
		d := device(t, &p, name(2)+"-"+string(share))
		d.Taints = append(d.Taints, occupied)
	}
	p.Rules = []resourceapi.DeviceTaintRule{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "drain-gpu-1"},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr(testDriver), Pool: ptr(testNode), Device: ptr(name(5))},
				Taint:          resourceapi.DeviceTaint{Key: "example.com/rma", Value: "ticket-7", Effect: resourceapi.DeviceTaintEffectNoExecute},
			},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "cleave-allocated-twice-1"},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr(testDriver), Pool: ptr(testNode), Device: ptr(name(6))},
				Taint:          resourceapi.DeviceTaint{Key: v1alpha1.AllocatedTwiceTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule},
			},
		},
		{ObjectMeta: metav1.ObjectMeta{Name: "selects-nothing"}, Spec: resourceapi.DeviceTaintRuleSpec{Taint: occupied}},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"},
			Spec:       resourceapi.DeviceTaintRuleSpec{DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: ptr("gpu-2")}, Taint: occupied},
		},
	}
	return p
}

func viewOf(t *testing.T, p Pool) *View {
	t.Helper()
	v, err := OfPool(p)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestPrint_BusyCluster(t *testing.T) {
	checkGolden(t, "cluster-busy.txt", text(t, viewOf(t, busyPool(t, newMachine(t, "hgx-h100"))), Options{Width: 110}))
}

func TestOfPool_JSON(t *testing.T) {
	m := newMachine(t, "t4")
	p := m.published()
	p.Claims = []resourceapi.ResourceClaim{allocated("dev/nb", results{part(m.gpu(0).PCI.DeviceName()+"-timeslice", "5Gi", "")}, "nb")}
	checkGolden(t, "cluster-t4.json", asJSON(t, viewOf(t, p)))
}

func TestConnections_MatchHardware(t *testing.T) {
	// Words for what slices do not publish must still be true.
	covers := map[string]func(exact string) bool{
		"NV":       func(exact string) bool { return strings.HasPrefix(exact, "NV") },
		atMostRoot: func(exact string) bool { return exact == "PIX" || exact == "PXB" || exact == "PHB" },
	}
	vague := map[string]int{}
	for _, model := range []string{"hgx-h100", "a100-pcie-nvlink-pairs", "dgx-a100", "l40s", "rtx-pro-6000", "a30", "t4", "gb200-nvl72"} {
		m := newMachine(t, model)
		exact, published := m.view().Connections, viewOf(t, m.published()).Connections
		for i := range exact {
			for j := range exact[i] {
				if covers[published[i][j]] != nil {
					vague[published[i][j]]++
				}
				if published[i][j] != exact[i][j] && (covers[published[i][j]] == nil || !covers[published[i][j]](exact[i][j])) {
					t.Errorf("%s: from GPU %d to %d: %s by attributes, %s by hardware", model, i, j, published[i][j], exact[i][j])
				}
			}
		}
	}
	// Eight GPUs with NVSwitches are 56 pairs; the number of links is known of a fabric and of pairs.
	if diff := cmp.Diff(map[string]int{"NV": 2 * 56}, vague); diff != "" {
		t.Errorf("inexact pairs (-want +got):\n%s", diff)
	}
}

func TestOfPool_MatchesMachine(t *testing.T) {
	for _, model := range []string{"hgx-h100", "l40s", "rtx-pro-6000"} {
		m := newMachine(t, model)
		machine, cluster := m.view(), viewOf(t, m.published())
		for i := range machine.GPUs {
			a, b := machine.GPUs[i], cluster.GPUs[i]
			if a.MIG != "no" {
				a.MIG, b.MIG = "", ""
			}
			a.PartitionMode = ""
			if diff := cmp.Diff(a, b, unexported); diff != "" {
				t.Errorf("%s, GPU %d (-machine +cluster):\n%s", model, i, diff)
			}
		}
	}
}

func TestOfPool_Free(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	v := viewOf(t, busyPool(t, m))
	free := map[string]string{}
	for i := range v.GPUs {
		free[v.GPUs[i].Name] = v.GPUs[i].FreeText()
	}
	if diff := cmp.Diff(map[string]string{
		"GPU0": "3x 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb",
		"GPU1": "all",
		"GPU2": "4x 1g.10gb, 1g.10gb+me, 2x 1g.20gb, 2x 2g.20gb, 3g.40gb, 4g.40gb",
		"GPU3": "1 time slice", // one claim has more memory than the default
		"GPU4": "nothing",      // no cores are left
		"GPU5": "7x 1g.10gb, 1g.10gb+me, 4x 1g.20gb, 3x 2g.20gb, 2x 3g.40gb, 4g.40gb, 7g.80gb, 4 time slices, 10 MPS shares",
		"GPU6": "nothing",
		"GPU7": "nothing",
	}, free); diff != "" {
		t.Errorf("free (-want +got):\n%s", diff)
	}
}

func TestOfPool_Errors(t *testing.T) {
	full := newMachine(t, "l40s").published()
	tests := map[string]struct {
		slices []resourceapi.ResourceSlice
		driver string
		want   string
	}{
		"nothing at all":     {nil, testDriver, "node gpu-1 has no ResourceSlices of driver gpu.cleave.dev"},
		"of another driver":  {full.Slices, "gpu.example.com", "node gpu-1 has no ResourceSlices of driver gpu.example.com"},
		"a slice is missing": {full.Slices[1:], testDriver, "pool gpu-1 is incomplete: it has 2 of 3 slices of generation 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := OfPool(Pool{Node: testNode, Driver: tt.driver, Slices: tt.slices})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got the error %v, want one with %q", err, tt.want)
			}
			none, incomplete := (*NoSlicesError)(nil), (*IncompleteError)(nil)
			if !errors.As(err, &none) && !errors.As(err, &incomplete) {
				t.Errorf("the error %v is of no documented type", err)
			}
		})
	}
}

func TestOfMachine_NoGPUs(t *testing.T) {
	p := Pool{Node: testNode, Driver: testDriver, Slices: nodeslices.Objects(&policy.Node{Node: &gpu.Node{}}, testDriver, testNode).Items}
	if got, want := text(t, viewOf(t, p), Options{}), "Node gpu-1, from its ResourceSlices of driver gpu.cleave.dev: 0 GPUs\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOfPool_ReadyPartitions(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	m.policy = policyOf(t, "- mig: {layout: {3g.40gb: 2}}\n")
	p := m.published()
	name := m.gpu(0).PCI.DeviceName()
	for _, id := range []string{"-mig-9-0", "-mig-9-4"} {
		device(t, &p, name+id).Attributes["uuid"] = resourceapi.DeviceAttribute{StringValue: ptr("MIG" + id)}
	}
	p.Claims = []resourceapi.ResourceClaim{allocated("dev/a", results{result(name + "-mig-9-0")})}
	var got []string
	for _, part := range viewOf(t, p).GPUs[0].Partitions {
		got = append(got, part.Profile+" "+string(part.State)+" "+part.UUID)
	}
	if diff := cmp.Diff([]string{"3g.40gb held MIG-mig-9-0", "3g.40gb ready MIG-mig-9-4"}, got); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
}

func TestOfPool_OtherDriver(t *testing.T) {
	str := func(v string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &v} }
	slice := resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: ptr("n"), Pool: resourceapi.ResourcePool{Name: "n", Generation: 3, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{
			{Name: "gpu-1", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"gpu.example.com/productName": str("B\x1b[31m\nPROBLEM: none"), "uuid": str("GPU-b"),
			}},
			{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"productName": str("A"), "uuid": str("GPU-a")}},
			{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": str("GPU-a")}},
		},
	}}
	v := viewOf(t, Pool{Node: "n", Driver: "gpu.example.com", Slices: []resourceapi.ResourceSlice{slice}})
	checkGolden(t, "cluster-other-driver.txt", text(t, v, Options{}))
}
