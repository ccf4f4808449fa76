// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

func cut(total, byDefault, minimum, step int64) Cut {
	return Cut{Total: total, Default: byDefault, Minimum: minimum, Step: step}
}

func TestApply_Amounts(t *testing.T) {
	memory := func(minimum, step string) *v1alpha1.MemoryCut {
		return &v1alpha1.MemoryCut{Minimum: amount(minimum), Step: amount(step)}
	}
	tests := map[string]struct {
		shares int32
		memory *v1alpha1.MemoryCut
		cores  *v1alpha1.CoreCut
		want   Cut // of 80 GiB
		wantC  Cut
	}{
		"even":                          {8, nil, nil, cut(80*gib, 10*gib, gib, gib/4), cut(100, 12, 1, 1)},
		"uneven":                        {7, nil, nil, cut(80*gib, 11*gib+gib/4, gib, gib/4), cut(100, 14, 1, 1)},
		"one share":                     {1, nil, nil, cut(80*gib, 80*gib, gib, gib/4), cut(100, 100, 1, 1)},
		"steps from an odd minimum":     {4, memory("3Gi", "2Gi"), &v1alpha1.CoreCut{Minimum: ptr(int32(7)), Step: ptr(int32(5))}, cut(80*gib, 19*gib, 3*gib, 2*gib), cut(100, 22, 7, 5)},
		"steps of no power of two":      {4, memory("1Gi", "3Gi"), nil, cut(80*gib, 19*gib, gib, 3*gib), cut(100, 25, 1, 1)},
		"decimal steps":                 {4, memory("1G", "500M"), nil, cut(80*gib, 21e9, 1e9, 5e8), cut(100, 25, 1, 1)},
		"a step larger than a part":     {4, memory("1Gi", "40Gi"), &v1alpha1.CoreCut{Step: ptr(int32(50))}, cut(80*gib, gib, gib, 40*gib), cut(100, 1, 1, 50)},
		"a minimum larger than a part":  {10, memory("20Gi", "1Gi"), &v1alpha1.CoreCut{Minimum: ptr(int32(30))}, cut(80*gib, 20*gib, 20*gib, gib), cut(100, 30, 30, 1)},
		"a minimum of everything":       {10, memory("80Gi", "1Gi"), &v1alpha1.CoreCut{Minimum: ptr(int32(100))}, cut(80*gib, 80*gib, 80*gib, gib), cut(100, 100, 100, 1)},
		"more shares than percent fits": {48, nil, &v1alpha1.CoreCut{Minimum: ptr(int32(3))}, cut(80*gib, gib+gib/2, gib, gib/4), cut(100, 3, 3, 1)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{
				TimeSlice: &v1alpha1.TimeSlicePolicy{Shares: &tt.shares, Memory: tt.memory},
				MPS:       &v1alpha1.MPSPolicy{Shares: &tt.shares, Memory: tt.memory, Cores: tt.cores, SharedMemory: amount("2Gi")},
			}}}
			got := offers(Apply(p, node(), Capabilities{}))[0]
			if diff := cmp.Diff([]Cut{tt.want, tt.want, tt.wantC}, []Cut{got.TimeSlice.Memory, got.MPS.Memory, got.MPS.Cores}); diff != "" {
				t.Errorf("cuts of time slices and MPS (-want +got):\n%s", diff)
			}
			if got.TimeSlice.Shares != int64(tt.shares) || got.MPS.Shares != int64(tt.shares) || got.MPS.SharedMemory != 2*gib {
				t.Errorf("got %d and %d shares and %d bytes of shared memory, want %d shares and 2 GiB", got.TimeSlice.Shares, got.MPS.Shares, got.MPS.SharedMemory, tt.shares)
			}
		})
	}
}

// checkCut holds a cut against what the API server and the scheduler make of it.
func checkCut(t *testing.T, what string, c Cut, shares int64) {
	t.Helper()
	if c == (Cut{}) {
		return
	}
	if c.Minimum < 1 || c.Step < 1 || c.Minimum > c.Total {
		t.Errorf("%s: %+v is no range", what, c)
		return
	}
	if c.Default < c.Minimum || c.Default > c.Total || (c.Default-c.Minimum)%c.Step != 0 {
		t.Errorf("%s: the default of %+v is not in its range", what, c)
	}
	if shares*c.Minimum <= c.Total {
		if shares*c.Default > c.Total {
			t.Errorf("%s: %d times the default of %+v is more than all", what, shares, c)
		}
		// Nor is a step given away that each could have had.
		if shares*(c.Default+c.Step) <= c.Total {
			t.Errorf("%s: a step more than the default of %+v fits %d times", what, c, shares)
		}
	}
}

// allNodes are the node models, and each board on a node of its own.
func allNodes(t *testing.T) map[string]*gpu.Node {
	t.Helper()
	nodes := map[string]*gpu.Node{}
	for _, name := range simulated.NodeModels() {
		nodes["model "+name] = model(t, name)
	}
	boards, err := sim.Boards()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range boards {
		memory := b.MemoryMiB << 20
		capability := gpu.Version{Major: b.ComputeCapability[0], Minor: b.ComputeCapability[1]}
		nodes["board "+b.Name] = &gpu.Node{DriverVersion: "590.44.01", GPUs: []gpu.GPU{{ProductName: b.Product, ComputeCapability: &capability, Memory: &memory}}}
	}
	return nodes
}

// A GPU whose memory nobody counts because a policy's numbers do not fit it would be over-committed.
func TestApply_GPUTooSmall(t *testing.T) {
	small := &v1alpha1.MemoryCut{Minimum: amount("81Gi")}
	got := offers(Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{
		TimeSlice: &v1alpha1.TimeSlicePolicy{Memory: small}, MPS: &v1alpha1.MPSPolicy{Memory: small},
	}}}, node(), Capabilities{}))[0]
	const why = "the policy's minimum share of memory exceeds the 81920 MiB of the GPU"
	if got.TimeSlice != nil || got.MPS != nil || got.NoTimeSlice != why || got.NoMPS != why {
		t.Errorf("got %+v, want no shares because %q", got, why)
	}
}

func TestApply_DefaultAmounts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	quantity := func(most int64) string { return fmt.Sprint(1<<20 + random.Int64N(most)) }
	for name, n := range allNodes(t) {
		for round := range 300 {
			rule := v1alpha1.Rule{TimeSlice: &v1alpha1.TimeSlicePolicy{}, MPS: &v1alpha1.MPSPolicy{}}
			if round > 0 {
				rule.TimeSlice.Shares, rule.MPS.Shares = ptr(1+random.Int32N(1000)), ptr(1+random.Int32N(60))
				rule.TimeSlice.Memory = &v1alpha1.MemoryCut{Minimum: amount(quantity(100 * gib)), Step: amount(quantity(10 * gib))}
				rule.MPS.Memory = &v1alpha1.MemoryCut{Minimum: amount(quantity(8 * gib)), Step: amount(quantity(gib))}
				rule.MPS.Cores = &v1alpha1.CoreCut{Minimum: ptr(1 + random.Int32N(100)), Step: ptr(1 + random.Int32N(100))}
			}
			for i, o := range offers(Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{rule}}, n, Capabilities{})) {
				what := fmt.Sprintf("%s, GPU %d, round %d", name, i, round)
				if (o.TimeSlice == nil) != (o.NoTimeSlice != "") || (o.MPS == nil) != (o.NoMPS != "") || round == 0 && (o.TimeSlice == nil || o.MPS == nil) {
					t.Fatalf("%s: not shared: %+v", what, o)
				}
				if o.TimeSlice != nil {
					checkCut(t, what+", time slice memory", o.TimeSlice.Memory, o.TimeSlice.Shares)
				}
				if o.MPS != nil {
					checkCut(t, what+", MPS memory", o.MPS.Memory, o.MPS.Shares)
					checkCut(t, what+", MPS cores", o.MPS.Cores, o.MPS.Shares)
				}
				if round == 0 && (o.TimeSlice.Memory.Total == 0 || o.TimeSlice.Shares*o.TimeSlice.Memory.Minimum > o.TimeSlice.Memory.Total || o.MPS.Shares*o.MPS.Memory.Minimum > o.MPS.Memory.Total) {
					t.Errorf("%s: by default not all shares fit: %+v and %+v", what, o.TimeSlice, o.MPS)
				}
			}
		}
	}
}

func TestApply_InputUnchanged(t *testing.T) {
	n, before := node(), node()
	p := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{TimeSlice: &v1alpha1.TimeSlicePolicy{Shares: ptr(int32(2))}}}}
	first := Apply(p, n, Capabilities{})
	if diff := cmp.Diff(before, n); diff != "" {
		t.Errorf("the node (-before +after):\n%s", diff)
	}
	// The same inventory offered anew, as after a change of means, leaves the first offers as they are.
	second := Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{}}}}, n, Capabilities{})
	if got := first.Offers[0]; got.TimeSlice == nil || got.TimeSlice.Shares != 2 || !got.Whole {
		t.Errorf("the first offer became %+v", got)
	}
	if diff := cmp.Diff(Offer{}, second.Offers[0]); diff != "" {
		t.Errorf("the second offer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&Node{Node: &gpu.Node{DriverVersion: "1"}, Offers: []Offer{}}, Apply(&v1alpha1.NodePolicy{}, &gpu.Node{DriverVersion: "1"}, Capabilities{})); diff != "" {
		t.Errorf("a node without GPUs (-want +got):\n%s", diff)
	}
}
