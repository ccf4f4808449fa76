// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

func TestDesired_MPS(t *testing.T) {
	b := newBed(t, "a30")
	away := errors.New("connection refused")
	b.MPS = away
	b.Ready = false
	b.step(Policies) // the first answer is no change
	b.Ready = true
	b.step(0)
	b.MPS = nil
	b.step(Supervisor)
	all := ofKind(b.plan.Offer, gpu.MPS)
	if len(all) != 2 {
		t.Fatalf("the node offers %v by MPS, want both GPUs", all)
	}
	b.MPS, b.Memory = away, Memory{}
	b.step(Supervisor)
	if why := b.plan.Offer.Offers[0].NoMPS; !strings.Contains(why, away.Error()) {
		t.Errorf("there is no MPS because of %q, want %v", why, away)
	}
	steps := []struct {
		name             string
		mps              error
		recovers         bool
		offered, tainted []string
	}{
		{"never answered", away, false, nil, nil},
		{"answers", nil, true, all, nil},
		{"still answers", nil, false, all, nil},
		{"away", away, true, all, all},
		{"still away", away, false, all, all},
		{"back", nil, true, all, nil},
	}
	for _, step := range steps {
		b.MPS = step.mps
		if p := b.step(Supervisor); p.Recover != step.recovers {
			t.Errorf("%s: recovers %t, want %t", step.name, p.Recover, step.recovers)
		}
		if diff := cmp.Diff(step.offered, ofKind(b.plan.Offer, gpu.MPS)); diff != "" {
			t.Errorf("%s: devices (-want +got):\n%s", step.name, diff)
		}
		if diff := cmp.Diff(step.tainted, b.tainted(nodeslices.TaintNoMPS)); diff != "" {
			t.Errorf("%s: taints (-want +got):\n%s", step.name, diff)
		}
	}
}

// MPS of claims on record stays offered though the supervisor is away at the start.
func TestDesired_MPSAllocatedAtStart(t *testing.T) {
	b := newBed(t, "a30")
	b.MPS = errors.New("connection refused")
	b.allocate(records.Device{GPU: b.device(0), Share: &records.Share{Kind: gpu.MPS}})
	b.step(Policies)
	if got, taints := ofKind(b.plan.Offer, gpu.MPS), b.tainted(nodeslices.TaintNoMPS); len(got) != 2 || len(taints) != 2 {
		t.Errorf("got devices %v with taints %v, want both GPUs, tainted", got, taints)
	}
}

func TestDesired_MemoryLimits(t *testing.T) {
	b := newBed(t, "a30")
	b.MemoryLimits = map[gpu.PCIAddress]bool{b.Inventory.GPUs[1].PCI: true}
	before := b.step(Policies).Offer
	b.Memory, b.MPS = Memory{}, errors.New("no supervisor")
	after := b.step(Supervisor).Offer
	if len(ofKind(before, gpu.MPS)) != 2 || len(ofKind(after, gpu.MPS)) != 0 {
		t.Errorf("got %v before and %v after, want the earlier plan to keep its offer", ofKind(before, gpu.MPS), ofKind(after, gpu.MPS))
	}
	var got []policy.Enforcement
	for i := range after.Offers {
		got = append(got, after.Offers[i].TimeSlice.Enforcement)
	}
	if diff := cmp.Diff([]policy.Enforcement{policy.NotEnforced, policy.EnforcedPerCgroup}, got); diff != "" {
		t.Errorf("enforcement (-want +got):\n%s", diff)
	}
}

// The scheduler forgets what devices consume that are gone, and would allocate the GPU a second time.
func TestDesired_WithdrawnWhileAllocated(t *testing.T) {
	b := newBed(t, "hgx-h100")
	b.write("default.yaml", "rules: [{tiers: [exclusive]}]")
	b.allocate(
		records.Device{GPU: b.device(0), Share: &records.Share{Kind: gpu.TimeSlice}},
		records.Device{GPU: b.device(1), Share: &records.Share{Kind: gpu.MPS}},
		records.Device{GPU: b.device(2), Partition: &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}},
		records.Device{GPU: b.device(3)},
		records.Device{GPU: b.device(4), Partition: &gpu.Partition{}, AdminAccess: true},
		records.Device{GPU: b.device(5), Share: &records.Share{Kind: gpu.MPS, Exclusive: true}},
	)
	b.step(Policies)
	want := []gpu.Tiers{{TimeSlice: true}, {MPS: true}, {}, {}, {}, {}}
	for i, w := range want {
		o := b.plan.Offer.Offers[i]
		if o.Withdrawn != w || (o.TimeSlice != nil) != w.TimeSlice || (o.MPS != nil) != w.MPS || (o.Partitions != nil) != (i == 2) || !o.Whole {
			t.Errorf("GPU %d: got %+v, want %+v withdrawn and the whole GPU besides", i, o, w)
		}
	}
	kept := policy.NoPlaces([]gpu.Place{{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}})
	if diff := cmp.Diff(kept, b.plan.Offer.Offers[2].Partitions); diff != "" {
		t.Errorf("partitions of GPU 2 (-want +got):\n%s", diff)
	}
	b.allocates()
	if o := b.plan.Offer.Offers[0]; o.TimeSlice != nil || o.Withdrawn != (gpu.Tiers{}) {
		t.Errorf("got %+v once nothing is allocated, want what the policy has", o)
	}
}

func TestDesired_Order(t *testing.T) {
	b := newBed(t, "rtx-pro-6000")
	order := func() string {
		var words []string
		for _, n := range b.slices[1] {
			i := slices.IndexFunc(b.Inventory.GPUs, func(g gpu.GPU) bool { return g.PCI.DeviceName() == n })
			words = append(words, fmt.Sprint(i))
		}
		return strings.Join(words, " ")
	}
	partition := func(start int) records.Device {
		return records.Device{GPU: b.device(0), Partition: &gpu.Partition{ProfileID: 14, Placement: gpu.Placement{Start: start, Size: 3}}}
	}
	b.step(Policies)
	whole := records.Device{GPU: b.device(7)}
	steps := []struct {
		name      string
		allocated []records.Device
		want      string
		published bool
	}{
		{"nothing", nil, "7 6 5 4 3 2 1 0", false},
		{"whole GPU", []records.Device{whole}, "3 2 1 0 5 4 7 6", true},
		{"partition", []records.Device{whole, partition(9)}, "5 4 7 6 3 2 1 0", true},
		{"another partition of that GPU", []records.Device{whole, partition(9), partition(6)}, "5 4 7 6 3 2 1 0", false},
		{"one partition released", []records.Device{whole, partition(6)}, "5 4 7 6 3 2 1 0", false},
		{"all released", nil, "7 6 5 4 3 2 1 0", true},
	}
	for _, step := range steps {
		before := b.slices
		b.allocate(step.allocated...)
		p := b.step(Allocations)
		if diff := cmp.Diff(step.want, order()); diff != "" || (p.Slices != nil) != step.published {
			t.Errorf("%s: published %t, want %t; order (-want +got):\n%s", step.name, p.Slices != nil, step.published, diff)
		}
		for i, devices := range b.slices {
			if i != 1 && !slices.Equal(devices, before[i]) {
				t.Errorf("%s: slice %d changed, too", step.name, i)
			}
		}
	}
}

// TestDesired_SharedFirst: the scheduler takes the first device with room, so that a GPU that is shared already is published first, or
// last by a policy that spreads shares.
func TestDesired_SharedFirst(t *testing.T) {
	for placement, place := range map[string]int{"pack": 0, "spread": 7} {
		b := newBed(t, "hgx-h100")
		b.rules("{tiers: [timeSlice], timeSlice: {placement: " + placement + "}}")
		shared, before := b.device(5)+"-timeslice", slices.Concat(b.slices...)
		b.allocates(records.Device{GPU: b.device(5), Device: shared, Share: &records.Share{Kind: gpu.TimeSlice}})
		after := slices.Concat(b.slices...)
		if len(before) != 8 || len(after) != 8 {
			t.Fatalf("%s: %v, then %v are published, want 8", placement, before, after)
		}
		if before[place] == shared || after[place] != shared {
			t.Errorf("%s: %v, once GPU 5 has a claim %v, want it at %d", placement, before, after, place)
		}
	}
}

// A device of which nothing is left is nobody's, although the rest of its claim keeps it on record.
func TestFreeGPUs_Released(t *testing.T) {
	b := newBed(t, "a30")
	g := &b.Inventory.GPUs[0]
	slice := gpu.Shape{GPU: g, Share: gpu.TimeSlice}
	for _, released := range []bool{false, true} {
		all := []*records.Record{{State: records.Releasing, Devices: []records.Device{
			{GPU: b.device(0), Device: slice.Name(), Share: &records.Share{Kind: gpu.TimeSlice}, Released: released},
		}}}
		free, claims := freeGPUs(all)(g), shareClaims(all)(slice)
		if free != released || (claims == 0) != released {
			t.Errorf("released: %t: the GPU is free: %t, and %d claims share it", released, free, claims)
		}
	}
}
