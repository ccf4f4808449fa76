// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

const gib = 1 << 30

// busy is a node with every kind of allocation.
func busy(t *testing.T) *machine {
	m := newMachine(t, "hgx-h100")
	m.noMPS = errors.New("no supervisor answers")
	m.claim("ml/llm-7b-x5k2p", m.made(0, "3g.40gb", 4))
	m.make(0, "1g.10gb", 0)
	m.make(0, "1g.10gb+me", 1)
	m.claim("dev/old", m.made(0, "1g.10gb", 2)).State = records.Releasing
	m.claim("dev/whole-board", m.made(1, "7g.80gb", 0))
	m.claim("dev/small", m.made(2, "1g.10gb", 6))
	m.claim("dev/coming", m.partition(2, "2g.20gb", 4, gpu.Partition{})).State = records.Preparing
	for _, name := range []string{"dev/notebook-1", "dev/notebook-2"} {
		m.claim(name, m.share(3, records.Share{ID: "i", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 * gib, Interval: "Long"}))
	}
	m.claim("infer/embeddings", m.share(4, records.Share{ID: "i", Kind: gpu.MPS, Shares: 2, Memory: 20 * gib, Cores: 25, MPS: &records.MPS{}}))
	m.claim("dev/lost", m.partition(5, "3g.40gb", 4, gpu.Partition{GI: 1, UUID: "MIG-lost"}))
	m.claim("ml/train", m.whole(6), m.whole(7))
	admin := m.whole(6)
	admin.AdminAccess = true
	m.claim("monitoring/dcgm", admin)
	return m
}

func TestPrint_BusyNode(t *testing.T) {
	v := busy(t).view()
	checkGolden(t, "busy.txt", text(t, v, Options{Width: 110}))
	checkGolden(t, "busy-narrow-ascii.txt", text(t, v, Options{Width: 60, ASCII: true}))
	checkGolden(t, "busy-wide.txt", text(t, only(v, 2, 3, 6), Options{Width: 80, Wide: true}))
}

func TestPrint_VirtualMachines(t *testing.T) {
	node, err := sim.New("gb200-nvl4")
	if err != nil {
		t.Fatal(err)
	}
	hardware := node.Hardware()
	for _, err := range []error{
		hardware.SetConfidential(sim.ConfidentialReady), hardware.SetVirtualization(0, sim.VirtualizationPassThrough),
		hardware.SetVirtualization(1, sim.VirtualizationVGPU), hardware.SetVirtualization(2, sim.VirtualizationHostVGPU),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	checkGolden(t, "virtual-machine.txt", text(t, machineOf(t, node).view(), Options{}))
}

func TestPrint_Models(t *testing.T) {
	for _, model := range []string{"hgx-h100", "a100-pcie-nvlink-pairs", "rtx-pro-6000", "l40s", "t4", "gb200-nvl72", "gb200-nvl4", "gh200"} {
		v := newMachine(t, model).view()
		v.Source, v.Node = Model, model
		checkGolden(t, "model-"+model+".txt", text(t, v, Options{}))
	}
	m := newMachine(t, "l40s")
	m.claim("dev/notebook", m.share(0, records.Share{ID: "i", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 * gib, Interval: "Long"}))
	v := m.view()
	v.Source, v.Node = Model, "l40s"
	checkGolden(t, "model-l40s.json", asJSON(t, only(v, 0)))
}

func TestPrint_Widths(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		v := newMachine(t, model).view()
		for _, width := range []int{-5, 0, 1, 7, 20, 40, 79, 100, 500} {
			for _, ascii := range []bool{false, true} {
				got := text(t, v, Options{Width: width, ASCII: ascii, Wide: true})
				if units := v.GPUs[0].Slices; units > 0 && len(lines(got, "  GPU")) < len(v.GPUs) {
					t.Errorf("%s at width %d: no slice maps in\n%s", model, width, got)
				}
				for _, r := range got {
					if ascii && r > 126 {
						t.Fatalf("%s at width %d: %q in ASCII", model, width, r)
					}
				}
			}
		}
	}
}

func TestPrint_MixedMIGMode(t *testing.T) {
	m := newMachine(t, "a30")
	m.claim("dev/a", m.made(0, "2g.12gb", 2))
	v := m.view()
	checkGolden(t, "a30-mig.txt", text(t, v, Options{}))
	checkGolden(t, "a30-mig.json", asJSON(t, only(v, 0)))
}

func TestOfMachine_PartitionStates(t *testing.T) {
	layout := "- mig: {layout: {1g.10gb: 2, 2g.20gb: 1}}\n"
	tests := map[string]struct {
		rules  string
		layout bool
		want   []PartitionState
		free   []Amount
	}{
		"layout": {layout, true, []PartitionState{PartitionReady, PartitionAllocated, PartitionUnmanaged}, []Amount{{typeMIG, "1g.10gb", 1}}},
		"existing": {
			"- mig: {mode: existing}\n", false,
			[]PartitionState{PartitionReady, PartitionAllocated, PartitionReady}, []Amount{{typeMIG, "1g.10gb", 1}, {typeMIG, "3g.40gb", 1}},
		},
		"of another policy's layout": {
			"- tiers: [mig]\n", true, []PartitionState{PartitionIdle, PartitionAllocated, PartitionUnmanaged},
			[]Amount{{typeMIG, "1g.10gb", 2}, {typeMIG, "1g.10gb+me", 1}, {typeMIG, "1g.20gb", 1}, {typeMIG, "2g.20gb", 1}},
		},
		"unmanaged": {
			"- tiers: [mig]\n", false, []PartitionState{PartitionUnmanaged, PartitionAllocated, PartitionUnmanaged},
			[]Amount{{typeMIG, "1g.10gb", 2}, {typeMIG, "1g.10gb+me", 1}, {typeMIG, "1g.20gb", 1}, {typeMIG, "2g.20gb", 1}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, "hgx-h100")
			m.policy = policyOf(t, tt.rules)
			ready := m.make(0, "1g.10gb", 0)
			m.claim("dev/a", m.made(0, "1g.10gb", 1))
			m.make(0, "3g.40gb", 4)
			if tt.layout {
				g := m.gpu(0)
				m.Layouts = []*records.Layout{{GPU: g.PCI.DeviceName(), UUID: g.UUID, Places: []gpu.Place{ready.Place()}}}
			}
			g := m.view().GPUs[0]
			var got []PartitionState
			for _, p := range g.Partitions {
				got = append(got, p.State)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("states of partitions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.free, g.Free); diff != "" {
				t.Errorf("free (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOfMachine_ExclusiveShare(t *testing.T) {
	m := newMachine(t, "hgx-h100")
	alone := m.whole(2)
	alone.Share = &records.Share{ID: records.ExclusiveID, Kind: gpu.TimeSlice, Exclusive: true, Interval: "Long"}
	m.claim("dev/alone", alone)
	var allocated []Shape
	for _, s := range m.view().GPUs[2].Shapes {
		if len(s.Claims) > 0 {
			allocated = append(allocated, s)
		}
	}
	if len(allocated) != 1 || allocated[0].Type != typeGPU || allocated[0].State != Allocated || allocated[0].Claims[0].Has != nil ||
		allocated[0].Claims[0].Interval != "Long" {
		t.Errorf("allocated are %+v, want the whole GPU with its interval and no amounts", allocated)
	}
}
