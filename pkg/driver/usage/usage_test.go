// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

const gib = 1 << 30

// open is a node of one GPU that offers every tier, and its GPU.
func open(t *testing.T) (*policy.Node, *gpu.GPU) {
	t.Helper()
	session, err := simulated.Open(t.Context(), "hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	inventory := *session.Node()
	inventory.GPUs = inventory.GPUs[:1]
	node := policy.Apply(&v1alpha1.NodePolicy{}, &inventory, policy.Capabilities{})
	return node, &inventory.GPUs[0]
}

// recordOf is a prepared claim of devices of a GPU.
func recordOf(g *gpu.GPU, name string, devices ...records.Device) *records.Record {
	r := &records.Record{Claim: records.Claim{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	for _, d := range devices {
		d.GPU, d.UUID, d.Pool = g.PCI.DeviceName(), g.UUID, "node-1"
		r.Devices = append(r.Devices, d)
	}
	return r
}

func whole(g *gpu.GPU) records.Device { return records.Device{Device: g.PCI.DeviceName()} }

func partition(t *testing.T, g *gpu.GPU, profile string, start, gi int) records.Device {
	t.Helper()
	for _, s := range g.PartitionShapes() {
		if s.Profile.Name == profile && s.Placement.Start == start {
			return records.Device{Device: s.Name(), Partition: &gpu.Partition{ProfileID: s.Profile.ID, Placement: s.Placement, GI: gi, UUID: "MIG-" + profile}}
		}
	}
	t.Fatalf("no %s at %d", profile, start)
	return records.Device{}
}

func share(g *gpu.GPU, kind gpu.Share, shares, memory, cores int64) records.Device {
	return records.Device{Device: g.PCI.DeviceName() + "-" + string(kind),
		Share: &records.Share{ID: "s", Kind: kind, Shares: shares, Memory: memory, Cores: cores}}
}

// tiers are those of the node's only GPU by what claims have.
func tiers(node *policy.Node, taints []nodeslices.Taint, all ...*records.Record) map[v1alpha1.Tier]Tier {
	byTier := map[v1alpha1.Tier]Tier{}
	for _, t := range Of(node, taints, all)[0].Tiers {
		byTier[t.Tier] = t
	}
	return byTier
}

func TestOf(t *testing.T) {
	node, g := open(t)
	memory := int64(*g.Memory)
	small := partition(t, g, "1g.10gb", 6, 1)
	profile := g.MIG.Profiles[0].Memory
	for _, p := range g.MIG.Profiles {
		if p.ID == small.Partition.ProfileID {
			profile = p.Memory
		}
	}
	mps := node.Offer(g).MPS
	observed := whole(g)
	observed.AdminAccess = true
	released := whole(g)
	released.Released = true
	alone := whole(g)
	alone.Share = &records.Share{ID: records.ExclusiveID, Kind: gpu.MPS, Exclusive: true, MPS: &records.MPS{}}
	placements := len(g.PartitionShapes())
	// taken are the tiers of a GPU of which another tier has something.
	taken := map[v1alpha1.Tier]Tier{"exclusive": {Devices: 1}, "mig": {Devices: placements},
		"timeSlice": {Devices: 1, Shares: 4}, "mps": {Devices: 1, Shares: 10}}
	exclusive := Tier{Devices: 1, Allocated: 1, Memory: memory, Cores: 100}
	nothing := map[v1alpha1.Tier]Tier{
		"exclusive": {Devices: 1, Free: 1}, "mig": {Devices: placements, Free: placements},
		"timeSlice": {Devices: 1, Free: 1, Shares: 4, SharesFree: 4, SharesFreeDefault: 4}, "mps": {Devices: 1, Free: 1, Shares: 10, SharesFree: 10, SharesFreeDefault: 10}}
	tests := map[string]struct {
		all  []*records.Record
		want map[v1alpha1.Tier]Tier // but for taken
	}{
		"nothing, and a claim that only observes": {[]*records.Record{recordOf(g, "dcgm", observed)}, nothing},
		"released": {[]*records.Record{recordOf(g, "a", released)}, nothing},
		"released, and another claim's": {[]*records.Record{recordOf(g, "a", released), recordOf(g, "b", whole(g))},
			map[v1alpha1.Tier]Tier{"exclusive": exclusive}},
		"whole":                          {[]*records.Record{recordOf(g, "a", whole(g))}, map[v1alpha1.Tier]Tier{"exclusive": exclusive}},
		"whole, shared by own processes": {[]*records.Record{recordOf(g, "a", alone)}, map[v1alpha1.Tier]Tier{"exclusive": exclusive}},
		// Of the 25 partitions that are published, those at unit 6 and the ones that cover it are not free.
		"partition": {[]*records.Record{recordOf(g, "a", small)}, map[v1alpha1.Tier]Tier{
			"mig": {Devices: placements, Allocated: 1, Free: 20, Memory: int64(profile), Cores: 100 * float64(16) / 132}}},
		"two claims share": {[]*records.Record{recordOf(g, "a", share(g, gpu.TimeSlice, 1, 20*gib, 0)), recordOf(g, "b", share(g, gpu.TimeSlice, 2, 40*gib, 0))},
			map[v1alpha1.Tier]Tier{
				"timeSlice": {Devices: 1, Allocated: 1, Free: 1, Shares: 4, SharesAllocated: 3, SharesFree: 1, SharesFreeDefault: 0, Memory: 60 * gib}}},
		"cores are what is short": {[]*records.Record{recordOf(g, "a", share(g, gpu.MPS, 1, 1*gib, 100))}, map[v1alpha1.Tier]Tier{
			"mps": {Devices: 1, Allocated: 1, Shares: 10, SharesAllocated: 1, Memory: 1 * gib, Cores: 100}}},
		"memory is what is short": {[]*records.Record{recordOf(g, "a", share(g, gpu.MPS, 1, mps.Memory.Total, 10))}, map[v1alpha1.Tier]Tier{
			"mps": {Devices: 1, Allocated: 1, Shares: 10, SharesAllocated: 1, Memory: mps.Memory.Total, Cores: 10}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			want := maps.Clone(taken)
			maps.Copy(want, tt.want)
			for tier, w := range want {
				w.Tier = tier
				want[tier] = w
			}
			equal(t, "tiers", want, tiers(node, nil, tt.all...))
		})
	}
}

func TestOf_SharedPartitions(t *testing.T) {
	node, g := open(t)
	node = policy.Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{MIG: &v1alpha1.MIGPolicy{Share: []v1alpha1.PartitionShare{
		{Profile: "3g.40gb", MPS: &v1alpha1.MPSPolicy{}}, {Profile: "1g.10gb", MPS: &v1alpha1.MPSPolicy{}},
	}}}}}, node.Node, policy.Capabilities{})
	of := func(profile string, start int, shares, memory, cores int64) records.Device {
		d := partition(t, g, profile, start, 1)
		d.Device += "-mps"
		d.Share = &records.Share{ID: "s", Kind: gpu.MPS, Shares: shares, Memory: memory, Cores: cores, MPS: &records.MPS{}}
		return d
	}
	// 3g.40gb: ten shares each, two of a GPU; 1g.10gb: six, as many as MPS takes there, seven of a GPU.
	empty := Tier{Tier: TierMIGMPS, Devices: 2 + 7, Free: 2 + 7, Shares: 42, SharesFree: 42, SharesFreeDefault: 42}
	upper := empty
	upper.Allocated, upper.SharesAllocated, upper.Memory, upper.Cores = 1, 2, 8*gib, 24*60/132.
	upper.Free = 2 + 4                // the lower half and its four
	upper.SharesFree = max(8+10, 6*4) // of the larger, or of the smaller below
	upper.SharesFreeDefault = 6 * 4
	full := upper
	full.SharesAllocated, full.Memory, full.Cores = 2, 39*gib, 24*60/132.
	full.Free, full.SharesFree = 1+4, 6*4
	tests := map[string]struct {
		all  []*records.Record
		want Tier
	}{
		"nothing": {nil, empty},
		"two claims of one partition": {[]*records.Record{
			recordOf(g, "a", of("3g.40gb", 4, 1, 4*gib, 12)), recordOf(g, "b", of("3g.40gb", 4, 1, 4*gib, 12)),
		}, upper},
		"all of its memory": {[]*records.Record{
			recordOf(g, "a", of("3g.40gb", 4, 1, 20*gib, 12)), recordOf(g, "b", of("3g.40gb", 4, 1, 19*gib, 12)),
		}, full},
		"the whole GPU": {[]*records.Record{recordOf(g, "a", whole(g))}, Tier{Tier: TierMIGMPS, Devices: 9, Shares: 42}},
		"noted before the GPU was known": {
			[]*records.Record{recordOf(g, "a", records.Device{Device: of("3g.40gb", 4, 0, 0, 0).Device})}, Tier{Tier: TierMIGMPS, Devices: 9, Shares: 42}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			equal(t, "shares of partitions", tt.want, tiers(node, nil, tt.all...)[TierMIGMPS], cmpopts.EquateApprox(0, 1e-9))
		})
	}
	exclusive := tiers(node, nil, tests["two claims of one partition"].all...)[v1alpha1.TierMIG]
	if exclusive.Allocated != 0 || exclusive.Memory != 0 || exclusive.Free != 14 { // those of the lower half
		t.Errorf("partitions for one claim: %+v", exclusive)
	}
}

func TestOf_Taints(t *testing.T) {
	node, g := open(t)
	got := tiers(node, []nodeslices.Taint{
		{Device: g.PCI.DeviceName(), Key: nodeslices.TaintUnhealthy},
		{Device: g.PCI.DeviceName() + "-timeslice", Key: nodeslices.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNone},
		{Device: g.PCI.DeviceName() + "-mps", Key: nodeslices.TaintNoMPS},
	})
	if got["exclusive"].Free != 0 || got["timeSlice"].Free != 1 || got["mps"].Free != 0 || got["mps"].SharesFree != 0 {
		t.Errorf("got %+v: only the time slices have a taint without effect", got)
	}
}

func TestOf_Withdrawn(t *testing.T) {
	node, g := open(t)
	node.Offer(g).Withdrawn.Whole = true
	if got := tiers(node, nil)["exclusive"]; got.Devices != 1 || got.Free != 0 {
		t.Errorf("got %+v, want a device that is published and not free", got)
	}
	want := map[string]int{nodeslices.TaintWithdrawn: 1, nodeslices.TaintNoMPS: 1}
	equal(t, "taints", want, Taints(node, []nodeslices.Taint{{Device: "x", Key: nodeslices.TaintNoMPS}}))
}

// A policy that offers nothing leaves nothing to count but what is allocated still.
func TestOf_NothingPublished(t *testing.T) {
	node, g := open(t)
	none := policy.Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{}}}}, node.Node, policy.Capabilities{MPS: errors.New("none")})
	if got := Of(none, nil, nil)[0]; got.Memory != 0 || got.Cores != 0 || len(got.Tiers) != 0 {
		t.Errorf("got %+v, want nothing", got)
	}
	got := Of(none, nil, []*records.Record{recordOf(g, "a", whole(g))})[0]
	equal(t, "tiers", []Tier{{Tier: "exclusive", Allocated: 1, Memory: int64(*g.Memory), Cores: 100}}, got.Tiers)
}

// The partitions that fit by the counts are those that fit by gpu.Shape's rule, whatever is allocated.
func TestOf_FreeAsShapesFit(t *testing.T) {
	node, g := open(t)
	shapes := g.PartitionShapes()
	for i, first := range shapes {
		for _, second := range shapes[i+1:] {
			if !second.FitsAlongside([]gpu.Shape{first}) {
				continue
			}
			want := 0
			for _, s := range shapes {
				if s.FitsAlongside([]gpu.Shape{first, second}) {
					want++
				}
			}
			var devices []records.Device
			for _, s := range []gpu.Shape{first, second} {
				devices = append(devices, records.Device{Device: s.Name(), Partition: &gpu.Partition{ProfileID: s.Profile.ID, Placement: s.Placement}})
			}
			if got := tiers(node, nil, recordOf(g, "a", devices...))["mig"].Free; got != want {
				t.Errorf("with %s and %s %d partitions are free, want %d", first.Name(), second.Name(), got, want)
			}
		}
	}
}

func TestTierOfName(t *testing.T) {
	node, g := open(t)
	for _, s := range node.Shapes(g) {
		if got, ok := TierOfName(s.Name()); !ok || got != tierOfShape(s) {
			t.Errorf("%s: got %q, %t, want %q", s.Name(), got, ok, tierOfShape(s))
		}
	}
	for _, name := range []string{"", "gpu-0", "nic-1", "gpu-0000-1b-00-0-other"} {
		if got, ok := TierOfName(name); ok {
			t.Errorf("%q is of tier %q, want none", name, got)
		}
	}
}

func TestAllocations(t *testing.T) {
	node, g := open(t)
	admin := whole(g)
	admin.AdminAccess = true
	coming := recordOf(g, "coming", partition(t, g, "1g.10gb", 0, 0))
	coming.State = records.Preparing
	allocated := recordOf(g, "allocated", whole(g)) // and not prepared
	allocated.Devices[0].UUID = ""
	all := []*records.Record{
		allocated,
		recordOf(g, "train", partition(t, g, "3g.40gb", 4, 2), admin), coming,
		recordOf(g, "many", share(g, gpu.TimeSlice, 1, 0, 0), share(g, gpu.TimeSlice, 1, 0, 0)),
	}
	pods := func(uid types.UID) []string {
		return map[types.UID][]string{"uid-train": {"train-0"}, "uid-many": {"a", "b"}}[uid]
	}
	device := g.PCI.DeviceName()
	mig := Allocation{Tier: "mig", UUID: g.UUID, Instance: "2", Profile: "3g.40gb", PartitionUUID: "MIG-3g.40gb", Namespace: "ns",
		Claim: "train", Pool: "node-1", Device: all[1].Devices[0].Device, Pod: "train-0"}
	slice := Allocation{Tier: "timeSlice", UUID: g.UUID, Namespace: "ns", Claim: "many", Pool: "node-1", Device: device + "-timeslice", Pod: "a"}
	other := slice
	other.Pod = "b"
	equal(t, "allocations", []Allocation{mig, slice, other}, Allocations(node.Node, all, pods))
	mig.Profile, mig.Pod, slice.Pod = "", "", ""
	got := Allocations(nil, all, func(types.UID) []string { return nil })
	equal(t, "without driver and pods", []Allocation{mig, slice}, got)
	want := map[records.State]int{records.Prepared: 2, records.Preparing: 1}
	equal(t, "states", want, States(all))
}
