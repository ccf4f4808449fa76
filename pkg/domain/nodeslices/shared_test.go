// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// offeredNode is a node of a model whose GPUs offer what a policy says, with every means.
func offeredNode(t *testing.T, model string, rules ...v1alpha1.Rule) *policy.Node {
	t.Helper()
	return policy.Apply(&v1alpha1.NodePolicy{Rules: rules}, modelNode(t, model).Node, policy.Capabilities{})
}

// sharedOf are the shared devices of a node, in order.
func sharedOf(t *testing.T, node *policy.Node) []resourceapi.Device {
	t.Helper()
	var shared []resourceapi.Device
	for _, s := range slicesOf(t, node) {
		for _, d := range s.Devices {
			if kind := *d.Attributes["type"].StringValue; kind != string(gpu.TypeGPU) && kind != string(gpu.TypeMIG) {
				shared = append(shared, d)
			}
		}
	}
	return shared
}

func TestShared_Names(t *testing.T) {
	node := offeredNode(t, "hgx-h100")
	node.GPUs, node.Offers = node.GPUs[:2], node.Offers[:2]
	checkGolden(t, "hgx-h100-default-names.yaml", names(t, node))
}

// Partitions that may be shared are devices alongside those for one claim, with amounts of their own.
func TestShared_Partitions(t *testing.T) {
	node := offeredNode(t, "hgx-h100", v1alpha1.Rule{Tiers: []v1alpha1.Tier{v1alpha1.TierMIG}, MIG: &v1alpha1.MIGPolicy{
		Profiles: []string{"4g.40gb", "3g.40gb"},
		Share:    []v1alpha1.PartitionShare{{Profile: "3g.40gb", MPS: &v1alpha1.MPSPolicy{}, TimeSlice: &v1alpha1.TimeSlicePolicy{}}},
	}})
	node.GPUs, node.Offers = node.GPUs[:1], node.Offers[:1]
	checkGolden(t, "hgx-h100-shared-partitions.yaml", Objects(node, "gpu.cleave.dev", "node-1"))
}

func TestShared_T4(t *testing.T) {
	checkGolden(t, "t4-default.yaml", Objects(offeredNode(t, "t4"), "gpu.cleave.dev", "node-1"))
}

func TestShared_NothingOptional(t *testing.T) {
	node := policy.Apply(&v1alpha1.NodePolicy{}, &gpu.Node{GPUs: []gpu.GPU{bareGPU()}}, policy.Capabilities{})
	shared := sharedOf(t, node)
	if len(shared) != 1 {
		t.Fatalf("got %d shared devices, want the time slices", len(shared))
	}
	var got []string
	for name := range shared[0].Capacity {
		got = append(got, string(name))
	}
	if diff := cmp.Diff([]string{"shares"}, got); diff != "" {
		t.Errorf("capacities (-want +got):\n%s", diff)
	}
	checkLimits(t, slicesOf(t, node))
}

func TestShared_Taints(t *testing.T) {
	node := offeredNode(t, "t4")
	name := node.GPUs[0].PCI.DeviceName()
	var got [][]string
	for _, s := range Of(node, View{Taints: []Taint{
		{Device: name, Key: TaintUnhealthy, Value: "xid-79", Effect: resourceapi.DeviceTaintEffectNoExecute},
		{Device: name, Key: TaintUnhealthy, Value: "xid-94", Effect: resourceapi.DeviceTaintEffectNone},
		{Device: name + "-mps", Key: TaintNoMPS}, {Device: name + "-mps", Key: TaintOccupied}, {Device: name, Key: TaintOccupied},
		{Device: "gpu-of-nobody", Key: TaintOccupied},
	}}) {
		for _, d := range s.Devices {
			line := []string{d.Name}
			for _, taint := range d.Taints {
				line = append(line, taint.Key+"="+taint.Value+":"+string(taint.Effect))
			}
			got = append(got, line)
		}
	}
	want := [][]string{
		{name, "gpu.cleave.dev/unhealthy=xid-79:NoExecute", "gpu.cleave.dev/unhealthy=xid-94:None", "gpu.cleave.dev/occupied=:NoSchedule"},
		{name + "-timeslice"},
		{name + "-mps", "gpu.cleave.dev/mps-unavailable=:NoSchedule", "gpu.cleave.dev/occupied=:NoSchedule"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices and taints (-want +got):\n%s", diff)
	}
}

func TestShared_MultipleAllocations(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offeredNode(t, model)
		for _, s := range slicesOf(t, node) {
			for _, d := range s.Devices {
				kind := *d.Attributes["type"].StringValue
				shared := kind == string(gpu.TimeSlice) || kind == string(gpu.MPS)
				if many := d.AllowMultipleAllocations; (many != nil) != shared || many != nil && !*many {
					t.Errorf("%s: %s of type %s: for many claims: %v", model, d.Name, kind, many)
				}
				if _, ok := d.Attributes["shares"]; ok != shared {
					t.Errorf("%s: %s of type %s has the attribute shares: %t", model, d.Name, kind, ok)
				}
				if kind != string(gpu.TypeMIG) && (d.Attributes["uuid"].StringValue == nil || d.Attributes["memoryEnforcement"].StringValue == nil) {
					t.Errorf("%s: %s of type %s has no UUID or does not say what holds its memory", model, d.Name, kind)
				}
			}
		}
	}
}

func TestShared_MemoryEnforcement(t *testing.T) {
	node := policy.Apply(&v1alpha1.NodePolicy{}, modelNode(t, "a30").Node, policy.Capabilities{
		CgroupMemory: func(g *gpu.GPU) bool { return g.Index == 0 },
	})
	got := map[string]string{}
	for _, s := range slicesOf(t, node) {
		for _, d := range s.Devices {
			got[fmt.Sprintf("%d %s", *d.Attributes["index"].IntValue, *d.Attributes["type"].StringValue)] = *d.Attributes["memoryEnforcement"].StringValue
		}
	}
	want := map[string]string{
		"0 gpu": "none", "0 timeslice": "cgroup", "0 mps": "process", "1 gpu": "none", "1 timeslice": "none", "1 mps": "process",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("memoryEnforcement (-want +got):\n%s", diff)
	}
}

func TestLimits_Shares(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			node := offeredNode(t, model)
			for i := range node.GPUs {
				node.GPUs[i].MIG.Enabled = mig && node.GPUs[i].MIG.Capable
			}
			checkLimits(t, slicesOf(t, node))
		}
	}
	// Two shared devices a GPU: 33 GPUs have more than a slice takes.
	for _, n := range []int{8, 31, 32, 33, 64, 65} {
		node := policy.Apply(&v1alpha1.NodePolicy{}, nodeOf(n).Node, policy.Capabilities{})
		checkLimits(t, slicesOf(t, node))
		if got := len(sharedOf(t, node)); got != 2*n {
			t.Errorf("%d GPUs: got %d shared devices, want two each", n, got)
		}
	}
}

// One capacity that is no range, and the API server refuses the slice with all
// shared devices of the node.
func TestLimits_AnyPolicy(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	number := func(most int32) string {
		return fmt.Sprint([]int32{1, most, 1 + random.Int32N(most), 1 + random.Int32N(min(most, 8))}[random.IntN(4)])
	}
	memory := func() string {
		return fmt.Sprint([]int64{1 << 20, 1 << 30, 16 << 30, 80 << 30, math.MaxInt64, 1<<20 + random.Int64N(100<<30)}[random.IntN(6)])
	}
	model := modelNode(t, "t4")
	for range 300 {
		text := "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules:\n" +
			"- timeSlice: {shares: " + number(1000) + ", memory: {minimum: " + memory() + ", step: " + memory() + "}}\n" +
			"  mps: {shares: " + number(60) + ", memory: {minimum: " + memory() + ", step: " + memory() + "}, cores: {minimum: " + number(100) + ", step: " + number(100) + "}}\n"
		p, err := v1alpha1.DecodeNodePolicy([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		board := uint64(random.Int64N(20 << 30))
		node := *model.Node
		node.GPUs = []gpu.GPU{model.GPUs[0]}
		node.GPUs[0].Memory = &board
		if checkLimits(t, slicesOf(t, policy.Apply(p, &node, policy.Capabilities{}))); t.Failed() {
			t.Fatalf("%d bytes of memory and the policy\n%s", board, text)
		}
	}
}

// What a policy says of shares changes those devices only, and no other slice.
func TestShared_OthersStay(t *testing.T) {
	every := encode(t, Of(offeredNode(t, "hgx-h100"), View{}))
	other := encode(t, Of(offeredNode(t, "hgx-h100", v1alpha1.Rule{TimeSlice: &v1alpha1.TimeSlicePolicy{Shares: ptr(int32(9))}}), View{}))
	a, b := strings.Split(every, `"name":`), strings.Split(other, `"name":`)
	for i := range a {
		if a[i] != b[i] && !strings.Contains(a[i], `-timeslice"`) {
			t.Errorf("another number of time slices changes %s", a[i])
		}
	}
}

func TestShared_DeepCopy(t *testing.T) {
	node := offeredNode(t, "t4")
	shared := sharedOf(t, node)
	want := encode(t, shared)
	o := &node.Offers[0]
	o.TimeSlice.Shares, o.MPS.Memory.Default, o.MPS.Cores.Total = 1, 2, 3
	if diff := cmp.Diff(want, encode(t, shared)); diff != "" {
		t.Errorf("published devices changed with the node (-before +after):\n%s", diff)
	}
}

func TestResources_Withdrawn(t *testing.T) {
	node := nodeOf(1)
	sharing := &policy.Sharing{Shares: 4, Memory: policy.NewCut(80<<30, 4, 1<<30, 1<<30), Enforcement: policy.NotEnforced}
	node.Offers = []policy.Offer{{Whole: true, TimeSlice: sharing, Withdrawn: gpu.Tiers{TimeSlice: true}}}
	got := map[string]int{}
	for _, s := range Of(node, View{}) {
		for _, d := range s.Devices {
			got[d.Name] = len(d.Taints)
			if len(d.Taints) > 0 && (d.Taints[0].Key != TaintWithdrawn || d.Taints[0].Effect != resourceapi.DeviceTaintEffectNoSchedule) {
				t.Errorf("device %s has taint %+v", d.Name, d.Taints[0])
			}
		}
	}
	name := node.GPUs[0].PCI.DeviceName()
	if diff := cmp.Diff(map[string]int{name: 0, name + "-timeslice": 1}, got); diff != "" {
		t.Errorf("taints by device (-want +got):\n%s", diff)
	}
}

// Of shared partitions, too, those in use come first.
func TestResources_SharedPartitionsInUseFirst(t *testing.T) {
	node := offeredNode(t, "hgx-h100", v1alpha1.Rule{Tiers: []v1alpha1.Tier{v1alpha1.TierMIG}, MIG: &v1alpha1.MIGPolicy{
		Share: []v1alpha1.PartitionShare{{Profile: "3g.40gb", MPS: &v1alpha1.MPSPolicy{}}},
	}})
	before := (&View{}).Shared(node)
	if len(before) != 16 || !strings.HasSuffix(before[0], "-mig-9-4-mps") || !strings.HasPrefix(before[0], node.GPUs[0].PCI.DeviceName()) {
		t.Fatalf("got %v, want two of each GPU, the upper one of the first GPU first", before)
	}
	used := before[5]
	after := (&View{Claims: claimsOf(map[string]int{used: 1})}).Shared(node)
	if after[0] != used || after[1] != before[0] {
		t.Errorf("got %v, want %s first", after, used)
	}
}

// claimsOf is the number of claims of each device.
func claimsOf(claims map[string]int) func(gpu.Shape) int {
	return func(s gpu.Shape) int { return claims[s.Name()] }
}

// Where the policy spreads shares, devices with the fewest claims come first, and the partitions of GPUs with the fewest.
func TestResources_SharesSpread(t *testing.T) {
	node := offeredNode(t, "hgx-h100", v1alpha1.Rule{
		Tiers:     []v1alpha1.Tier{v1alpha1.TierMIG, v1alpha1.TierTimeSlice, v1alpha1.TierMPS},
		TimeSlice: &v1alpha1.TimeSlicePolicy{Placement: v1alpha1.PlacementSpread},
		MIG: &v1alpha1.MIGPolicy{Share: []v1alpha1.PartitionShare{
			{Profile: "3g.40gb", MPS: &v1alpha1.MPSPolicy{Placement: v1alpha1.PlacementSpread}},
		}},
	})
	name := func(i int, end string) string { return node.GPUs[i].PCI.DeviceName() + end }
	order := (&View{Claims: claimsOf(map[string]int{
		name(4, "-timeslice"): 2, name(3, "-timeslice"): 1, name(7, "-mps"): 1, name(0, "-mig-9-4-mps"): 1,
	})}).Shared(node)
	of := func(end string) (gpus []string) {
		for _, device := range order {
			if rest, ok := strings.CutSuffix(device, end); ok {
				gpus = append(gpus, rest)
			}
		}
		return gpus
	}
	for _, d := range devicesOf(node, View{}) {
		got, want := d.Attributes["sharePlacement"].StringValue, []string{"timeslice", "mig-mps"}
		if (got != nil && *got == "spread") != slices.Contains(want, *d.Attributes["type"].StringValue) {
			t.Errorf("%s: sharePlacement is %v, want it of %v", d.Name, got, want)
		}
	}
	if got := of("0-timeslice"); len(got) != 8 || got[6]+"0" != name(3, "") || got[7]+"0" != name(4, "") {
		t.Errorf("time slices: got %v, want those with claims last, the one with the most at the end", got)
	}
	if got := of("0-mps"); got[0]+"0" != name(7, "") {
		t.Errorf("MPS of GPUs: got %v, want the one in use first, as nothing else is said", got)
	}
	if got := order[len(order)-2:]; got[0] != name(0, "-mig-9-0-mps") || got[1] != name(0, "-mig-9-4-mps") {
		t.Errorf("partitions: got %v at the end, want those of the GPU of which one is in use, that one last", got)
	}
}

func TestResources_SharedGPUsInUseFirst(t *testing.T) {
	node := offeredNode(t, "hgx-h100")
	last := gpu.Shape{GPU: &node.GPUs[7], Share: gpu.MPS}.Name()
	view := View{Claims: claimsOf(map[string]int{last: 1})}
	before, after := slicesOf(t, node), Of(node, view)
	changed := 0
	for i := range before {
		if encode(t, before[i]) != encode(t, after[i]) {
			changed++
			if diff := cmp.Diff(view.Shared(node), namesOf(after[i].Devices)); diff != "" || after[i].Devices[0].Name != last {
				t.Errorf("shared GPUs (-want +got):\n%s", diff)
			}
		}
	}
	if changed != 1 {
		t.Errorf("%d slices change, want that of the shared GPUs alone", changed)
	}
}
