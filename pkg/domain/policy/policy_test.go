// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func ptr[T any](v T) *T { return &v }

func amount(s string) *resource.Quantity { return ptr(resource.MustParse(s)) }

const gib = 1 << 30

// node is a node of two boards of 80 GiB, the second of another product; both can be cut in halves.
func node() *gpu.Node {
	mig := gpu.MIG{Capable: true, Slices: 2, Profiles: []gpu.Profile{
		{ID: 19, Name: "1g.40gb", MaxInstances: 2, Placements: []gpu.Placement{{Start: 0, Size: 1}, {Start: 1, Size: 1}}},
		{ID: 0, Name: "2g.80gb", MaxInstances: 1, Placements: []gpu.Placement{{Start: 0, Size: 2}}},
	}}
	return &gpu.Node{DriverVersion: "580.95.05", GPUs: []gpu.GPU{
		{
			PCI: gpu.PCIAddress{Bus: 0x1b}, UUID: "GPU-a", Index: 1, ProductName: "NVIDIA H100 80GB HBM3",
			ComputeCapability: &gpu.Version{Major: 9}, Memory: ptr(uint64(80 * gib)), PCIDeviceID: 0x233010de, PCISubsystemID: 0x16c110de, MIG: mig,
		},
		{
			PCI: gpu.PCIAddress{Bus: 0xca}, UUID: "GPU-b", ProductName: "Tesla T4",
			ComputeCapability: &gpu.Version{Major: 7, Minor: 5}, Memory: ptr(uint64(80 * gib)), PCIDeviceID: 0x1eb810de, MIG: mig,
		},
	}}
}

// offers are what GPUs of a node offer.
func offers(n *Node) []Offer { return n.Offers }

func TestApply_Defaults(t *testing.T) {
	want := Offer{
		Whole: true, Partitions: &PartitionOffer{Mode: OnDemand},
		TimeSlice: &Sharing{Shares: 4, Memory: Cut{Total: 80 * gib, Default: 20 * gib, Minimum: gib, Step: gib / 4}, Enforcement: NotEnforced},
		MPS: &Sharing{
			Shares: 10, Memory: Cut{Total: 80 * gib, Default: 8 * gib, Minimum: gib, Step: gib / 4},
			Cores: Cut{Total: 100, Default: 10, Minimum: 1, Step: 1}, SharedMemory: gib, Enforcement: EnforcedPerProcess,
		},
	}
	for name, p := range map[string]*v1alpha1.NodePolicy{
		"no rules":             {},
		"a rule of nothing":    {Rules: []v1alpha1.Rule{{}}},
		"no rule that matches": {Rules: []v1alpha1.Rule{{Match: &v1alpha1.Match{UUIDs: []string{"GPU-c"}}, Tiers: []v1alpha1.Tier{}}}},
		"empty parts": {Rules: []v1alpha1.Rule{{
			Match: &v1alpha1.Match{}, TimeSlice: &v1alpha1.TimeSlicePolicy{Memory: &v1alpha1.MemoryCut{}},
			MPS: &v1alpha1.MPSPolicy{Memory: &v1alpha1.MemoryCut{}, Cores: &v1alpha1.CoreCut{}},
		}}},
	} {
		if diff := cmp.Diff([]Offer{want, want}, offers(Apply(p, node(), Capabilities{}))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestApply_FirstMatch(t *testing.T) {
	match := func(m v1alpha1.Match) *v1alpha1.Match { return &m }
	tests := map[string]struct {
		match *v1alpha1.Match
		want  [2]bool // whether it matches each of the GPUs
	}{
		"nothing said":               {nil, [2]bool{true, true}},
		"nothing selected":           {match(v1alpha1.Match{}), [2]bool{true, true}},
		"product":                    {match(v1alpha1.Match{ProductNames: []string{"Tesla T4"}}), [2]bool{false, true}},
		"one of the products":        {match(v1alpha1.Match{ProductNames: []string{"A30", "NVIDIA H100 80GB HBM3"}}), [2]bool{true, false}},
		"part of a product":          {match(v1alpha1.Match{ProductNames: []string{"T4", "tesla t4"}}), [2]bool{}},
		"UUID":                       {match(v1alpha1.Match{UUIDs: []string{"GPU-a"}}), [2]bool{true, false}},
		"both UUIDs":                 {match(v1alpha1.Match{UUIDs: []string{"GPU-b", "GPU-a"}}), [2]bool{true, true}},
		"index":                      {match(v1alpha1.Match{Indexes: []int32{1}}), [2]bool{true, false}},
		"address":                    {match(v1alpha1.Match{PCIAddresses: []string{"0000:1b:00.0"}}), [2]bool{true, false}},
		"address in capitals":        {match(v1alpha1.Match{PCIAddresses: []string{"0000:CA:00.0"}}), [2]bool{false, true}},
		"address as NVML words it":   {match(v1alpha1.Match{PCIAddresses: []string{"00000000:CA:00.0"}}), [2]bool{false, true}},
		"address of none":            {match(v1alpha1.Match{PCIAddresses: []string{"0000:1b:00.1"}}), [2]bool{}},
		"device ID":                  {match(v1alpha1.Match{DeviceIDs: []string{"0x1EB810DE"}}), [2]bool{false, true}},
		"device ID and subsystem":    {match(v1alpha1.Match{DeviceIDs: []string{"0x233010DE:0x16C110DE", "0x1EB810DE:0x000010DE"}}), [2]bool{true, false}},
		"another subsystem":          {match(v1alpha1.Match{DeviceIDs: []string{"0x233010DE:0x16C010DE"}}), [2]bool{false, false}},
		"device ID in small letters": {match(v1alpha1.Match{DeviceIDs: []string{"0x233010de", "0x12345678"}}), [2]bool{true, false}},
		"memory from":                {match(v1alpha1.Match{Memory: &v1alpha1.MemoryRange{Min: amount("80Gi")}}), [2]bool{true, true}},
		"memory from above":          {match(v1alpha1.Match{Memory: &v1alpha1.MemoryRange{Min: amount("85899345921")}}), [2]bool{}},
		"memory to":                  {match(v1alpha1.Match{Memory: &v1alpha1.MemoryRange{Max: amount("80Gi")}}), [2]bool{true, true}},
		"memory to below":            {match(v1alpha1.Match{Memory: &v1alpha1.MemoryRange{Max: amount("85899345919")}}), [2]bool{}},
		"memory of one product":      {match(v1alpha1.Match{ProductNames: []string{"Tesla T4"}, Memory: &v1alpha1.MemoryRange{Min: amount("1Gi"), Max: amount("100Gi")}}), [2]bool{false, true}},
		"all of one GPU": {match(v1alpha1.Match{
			ProductNames: []string{"Tesla T4"}, UUIDs: []string{"GPU-b"}, Indexes: []int32{0}, PCIAddresses: []string{"0000:ca:00.0"},
		}), [2]bool{false, true}},
		"fields of two GPUs": {match(v1alpha1.Match{UUIDs: []string{"GPU-a"}, Indexes: []int32{0}}), [2]bool{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{
				{Match: tt.match, Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}},
				{Match: tt.match, Tiers: []v1alpha1.Tier{v1alpha1.TierMPS}}, // comes too late for those
				{Tiers: []v1alpha1.Tier{v1alpha1.TierMIG}},
			}}
			for i, o := range offers(Apply(p, node(), Capabilities{})) {
				want := Offer{Whole: tt.want[i]}
				if !tt.want[i] {
					want.Partitions = &PartitionOffer{Mode: OnDemand}
				}
				if diff := cmp.Diff(want, o); diff != "" {
					t.Errorf("GPU %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestApply_Tiers(t *testing.T) {
	words := func(o Offer) (list []string) {
		for _, tier := range []struct {
			name string
			has  bool
		}{{"exclusive", o.Whole}, {"mig", o.Partitions != nil}, {"timeSlice", o.TimeSlice != nil}, {"mps", o.MPS != nil}, {"no mps", o.NoMPS != ""}} {
			if tier.has {
				list = append(list, tier.name)
			}
		}
		return list
	}
	off := errors.New("no supervisor")
	tests := map[string]struct {
		tiers []v1alpha1.Tier
		mps   error
		want  []string
	}{
		"nil":               {nil, nil, []string{"exclusive", "mig", "timeSlice", "mps"}},
		"empty":             {[]v1alpha1.Tier{}, nil, nil},
		"exclusive":         {[]v1alpha1.Tier{v1alpha1.TierExclusive}, nil, []string{"exclusive"}},
		"MIG":               {[]v1alpha1.Tier{v1alpha1.TierMIG}, nil, []string{"mig"}},
		"time slice":        {[]v1alpha1.Tier{v1alpha1.TierTimeSlice}, nil, []string{"timeSlice"}},
		"MPS":               {[]v1alpha1.Tier{v1alpha1.TierMPS}, nil, []string{"mps"}},
		"both shared":       {[]v1alpha1.Tier{v1alpha1.TierMPS, v1alpha1.TierTimeSlice}, nil, []string{"timeSlice", "mps"}},
		"nil, MPS is off":   {nil, off, []string{"exclusive", "mig", "timeSlice", "no mps"}},
		"MPS, which is off": {[]v1alpha1.Tier{v1alpha1.TierMPS}, off, []string{"no mps"}},
		"no MPS wanted":     {[]v1alpha1.Tier{v1alpha1.TierMIG}, off, []string{"mig"}},
	}
	for name, tt := range tests {
		for _, o := range offers(Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: tt.tiers}}}, node(), Capabilities{MPS: tt.mps})) {
			if diff := cmp.Diff(tt.want, words(o)); diff != "" {
				t.Errorf("tiers %s (-want +got):\n%s", name, diff)
			}
		}
	}
}

func TestApply_NoMPS(t *testing.T) {
	const tooOld = "MPS limits its clients from compute capability 7.0 (Volta) on, and the GPU is older or does not say"
	off := errors.New("nobody answers")
	tests := map[string]struct {
		capability *gpu.Version
		mps        error
		want       string
	}{
		"Volta":                  {&gpu.Version{Major: 7}, nil, ""},
		"Blackwell":              {&gpu.Version{Major: 12}, nil, ""},
		"no supervisor":          {&gpu.Version{Major: 9}, off, "nobody answers"},
		"Pascal":                 {&gpu.Version{Major: 6, Minor: 2}, nil, tooOld},
		"Kepler":                 {&gpu.Version{Major: 3, Minor: 7}, nil, tooOld},
		"does not say":           {nil, nil, tooOld},
		"Pascal, no supervisor":  {&gpu.Version{Major: 6}, off, tooOld}, // what no supervisor would help with comes first
		"unknown, no supervisor": {nil, off, tooOld},
	}
	for name, tt := range tests {
		n := node()
		n.GPUs[0].ComputeCapability = tt.capability
		got := offers(Apply(&v1alpha1.NodePolicy{}, n, Capabilities{MPS: tt.mps}))[0]
		if got.NoMPS != tt.want || (got.MPS == nil) != (tt.want != "") {
			t.Errorf("%s: got %+v because %q, want the reason %q", name, got.MPS, got.NoMPS, tt.want)
		}
	}
}

func TestApply_MPSClients(t *testing.T) {
	tests := map[string]struct {
		driver string
		shares *int32
		want   int64
	}{
		"default":                     {"580.95.05", nil, 10},
		"fewest":                      {"580.95.05", ptr(int32(1)), 1},
		"as many as before 590":       {"580.95.05", ptr(int32(48)), 48},
		"more than before 590":        {"580.95.05", ptr(int32(49)), 48},
		"most before 590":             {"589.99.99", ptr(int32(60)), 48},
		"most from 590 on":            {"590.1", ptr(int32(60)), 60},
		"much later":                  {"1000.0", ptr(int32(60)), 60},
		"release alone":               {"590", ptr(int32(60)), 60},
		"driver that does not say":    {"", ptr(int32(60)), 48},
		"driver that says odd things": {"r590.1", ptr(int32(60)), 48},
	}
	for name, tt := range tests {
		n := node()
		n.DriverVersion = tt.driver
		p := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{MPS: &v1alpha1.MPSPolicy{Shares: tt.shares}}}}
		if got := offers(Apply(p, n, Capabilities{}))[0].MPS.Shares; got != tt.want {
			t.Errorf("%s: got %d shares, want %d", name, got, tt.want)
		}
	}
}

func TestApply_MemoryEnforcement(t *testing.T) {
	first := func(g *gpu.GPU) bool { return g.UUID == "GPU-a" }
	tests := map[string]struct {
		memory         *uint64
		limits         func(*gpu.GPU) bool
		timeSlice, mps Enforcement
	}{
		"nobody asked":              {ptr(uint64(80 * gib)), nil, NotEnforced, EnforcedPerProcess},
		"the driver can":            {ptr(uint64(80 * gib)), first, EnforcedPerCgroup, EnforcedPerProcess},
		"the driver cannot":         {ptr(uint64(80 * gib)), func(*gpu.GPU) bool { return false }, NotEnforced, EnforcedPerProcess},
		"memory is not reported":    {nil, first, NotEnforced, NotEnforced},
		"memory is not available":   {ptr(^uint64(0)), first, NotEnforced, NotEnforced},
		"no more than the minimum":  {ptr(uint64(gib)), first, EnforcedPerCgroup, EnforcedPerProcess},
		"a board of 288 GiB":        {ptr(uint64(288 * gib)), first, EnforcedPerCgroup, EnforcedPerProcess},
		"memory beyond any that is": {ptr(uint64(1)<<62 + 1), first, NotEnforced, NotEnforced},
	}
	for name, tt := range tests {
		n := node()
		n.GPUs[0].Memory = tt.memory
		got := offers(Apply(&v1alpha1.NodePolicy{}, n, Capabilities{CgroupMemory: tt.limits}))
		if got[0].TimeSlice.Enforcement != tt.timeSlice || got[0].MPS.Enforcement != tt.mps {
			t.Errorf("%s: time slices %s and MPS %s, want %s and %s", name, got[0].TimeSlice.Enforcement, got[0].MPS.Enforcement, tt.timeSlice, tt.mps)
		}
		if got[1].TimeSlice.Enforcement != NotEnforced {
			t.Errorf("%s: the other GPU's time slices enforce memory by %s", name, got[1].TimeSlice.Enforcement)
		}
	}
}

func TestApply_NoConsumableCapacity(t *testing.T) {
	caps := Capabilities{Shares: errors.New("Kubernetes is too old")}
	for _, o := range offers(Apply(&v1alpha1.NodePolicy{}, node(), caps)) {
		if o.TimeSlice != nil || o.MPS != nil || !o.Whole || o.Partitions == nil {
			t.Errorf("got %+v, want all but shares", o)
		}
		if o.NoTimeSlice != "Kubernetes is too old" || o.NoMPS != "Kubernetes is too old" {
			t.Errorf("got the reasons %q and %q", o.NoTimeSlice, o.NoMPS)
		}
	}
	// Alone they need no counting with other devices.
	beside := Capabilities{SharesBeside: errors.New("Kubernetes forgets")}
	for rule, shared := range map[string]bool{
		"{}": false, "{tiers: [timeSlice]}": true, "{tiers: [mps]}": true, "{tiers: [mps, timeSlice]}": false, "{tiers: [exclusive, mps]}": false,
		"{mig: {layout: {1g.40gb: 1}, share: [{profile: 1g.40gb, mps: {}}]}}": false,
		// Nobody has made partitions.
		"{tiers: [timeSlice, mig], mig: {mode: existing}}": true, "{tiers: [exclusive, timeSlice, mig], mig: {mode: existing}}": false,
	} {
		o := offers(Apply(policyOf(t, rule), node(), beside))[0]
		if got := o.TimeSlice != nil || o.MPS != nil || o.Partitions != nil && o.Partitions.Shared != nil; got != shared {
			t.Errorf("%s: shared %t, want %t: %+v", rule, got, shared, o)
		}
	}
	// A GPU of which shares are allocated offers nothing else: the scheduler would take it for free.
	timeSliced, byMPS := gpu.Allocated{Tiers: gpu.Tiers{TimeSlice: true}}, gpu.Allocated{Tiers: gpu.Tiers{MPS: true}}
	part := gpu.SharedPlace{Place: gpu.Place{ProfileID: 19, Placement: gpu.Placement{Start: 0, Size: 1}}, Share: gpu.MPS}
	for _, tt := range []struct {
		rule      string
		allocated gpu.Allocated
		free      bool
	}{
		{"{}", timeSliced, false}, {"{tiers: [exclusive]}", timeSliced, false}, {"{tiers: [mig]}", byMPS, false},
		{"{tiers: [mps]}", timeSliced, false}, {"{tiers: [timeSlice]}", timeSliced, true}, {"{tiers: [mps]}", byMPS, true},
		{"{mig: {layout: {1g.40gb: 2}}}", gpu.Allocated{Shared: []gpu.SharedPlace{part}}, false},
		{"{tiers: [exclusive]}", gpu.Allocated{Places: []gpu.Place{part.Place}}, true},
		{"{tiers: [timeSlice, mig], mig: {mode: existing}}", timeSliced, true},
	} {
		beside.Allocated = func(*gpu.GPU) gpu.Allocated { return tt.allocated }
		n := Apply(policyOf(t, tt.rule), node(), beside)
		shapes := n.Shapes(&n.GPUs[0])
		free := slices.ContainsFunc(shapes, func(s gpu.Shape) bool { return !n.Offers[0].IsWithdrawn(s) })
		if len(shapes) == 0 || free != tt.free {
			t.Errorf("%s: %+v is allocated, and %s offered; want any of them free: %t", tt.rule, tt.allocated, kindsOf(shapes), tt.free)
		}
	}
	// What is allocated stays published, or the scheduler would forget it.
	caps.Allocated = func(*gpu.GPU) gpu.Allocated { return gpu.Allocated{Tiers: gpu.Tiers{TimeSlice: true, MPS: true}} }
	for _, o := range offers(Apply(&v1alpha1.NodePolicy{}, node(), caps)) {
		if o.TimeSlice == nil || o.MPS == nil {
			t.Errorf("got %+v, want the shares that are allocated", o)
		}
	}
}
