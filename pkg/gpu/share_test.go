// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
)

var onDemand = &gpu.PartitionOffer{Mode: gpu.OnDemand}

// everything is an offer of all tiers.
func everything() *gpu.Offer {
	return &gpu.Offer{Whole: true, Partitions: onDemand, TimeSlice: &gpu.Sharing{Shares: 4}, MPS: &gpu.Sharing{Shares: 10}}
}

// offering is a node of a model whose GPUs offer all tiers, in MIG mode or not.
func offering(t *testing.T, model string, mig bool) *gpu.Node {
	t.Helper()
	node := modelNode(t, model)
	for i := range node.GPUs {
		node.GPUs[i].Offer = everything()
		node.GPUs[i].MIG.Enabled = mig && node.GPUs[i].MIG.Capable
	}
	return node
}

// kindsOf words the shapes of a GPU, partitions as their number.
func kindsOf(g *gpu.GPU) string {
	var words []string
	partitions := 0
	for _, s := range g.Shapes() {
		switch {
		case s.IsWhole():
			words = append(words, "whole")
		case s.IsShare():
			words = append(words, string(s.Share))
		case s.IsPartition():
			partitions++
		}
	}
	if partitions > 0 {
		words = append(words, fmt.Sprint(partitions))
	}
	return strings.Join(words, " ")
}

func TestAGPUHasTheShapesThatItOffersAndItsModeAllows(t *testing.T) {
	tests := map[string]struct {
		model string
		mig   bool
		offer *gpu.Offer
		want  string
	}{
		"no policy":                 {"hgx-h100", false, nil, "whole 25"},
		"everything":                {"hgx-h100", false, everything(), "whole timeslice mps 25"},
		"everything in MIG mode":    {"hgx-h100", true, everything(), "whole timeslice mps 25"},
		"nothing":                   {"hgx-h100", false, &gpu.Offer{}, ""},
		"whole":                     {"hgx-h100", false, &gpu.Offer{Whole: true}, "whole"},
		"partitions":                {"hgx-h100", false, &gpu.Offer{Partitions: onDemand}, "25"},
		"time slices":               {"hgx-h100", false, &gpu.Offer{TimeSlice: &gpu.Sharing{Shares: 4}}, "timeslice"},
		"MPS":                       {"hgx-h100", true, &gpu.Offer{MPS: &gpu.Sharing{Shares: 4}}, "mps"},
		"no MPS":                    {"hgx-h100", false, &gpu.Offer{Whole: true, TimeSlice: &gpu.Sharing{}, NoMPS: "off"}, "whole timeslice"},
		"Ampere":                    {"dgx-a100", false, everything(), "whole timeslice mps"},
		"Ampere in MIG mode":        {"dgx-a100", true, everything(), "25"},
		"Ampere, shares, MIG mode":  {"a30", true, &gpu.Offer{TimeSlice: &gpu.Sharing{}, MPS: &gpu.Sharing{}}, ""},
		"Ampere, partitions, whole": {"a30", false, &gpu.Offer{Partitions: onDemand}, ""},
		"no MIG":                    {"t4", false, everything(), "whole timeslice mps"},
	}
	for name, tt := range tests {
		g := modelNode(t, tt.model).GPUs[0]
		g.MIG.Enabled, g.Offer = tt.mig, tt.offer
		if got := kindsOf(&g); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestNamesOfSharedGPUsAreUniqueLabelsThatLeadBackToThem(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offering(t, model, false)
		seen := map[string]bool{}
		for i := range node.GPUs {
			g := &node.GPUs[i]
			for _, s := range g.Shapes() {
				name := s.Name()
				if s.IsShare() && name != g.PCI.DeviceName()+"-"+string(s.Share) {
					t.Errorf("%s: GPU %s shared by %s is named %s", model, g.PCI, s.Share, name)
				}
				if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 || seen[name] {
					t.Errorf("%s: name %q is there twice or no DNS label: %v", model, name, msgs)
				}
				seen[name] = true
				if found, ok := node.FindShape(name); !ok || found != s {
					t.Errorf("%s: FindShape(%q): got %v, %t, want the shape itself", model, name, found, ok)
				}
			}
		}
	}
	// What is no longer offered is not found, though the GPU is there.
	node := offering(t, "t4", false)
	name := node.GPUs[0].PCI.DeviceName()
	node.GPUs[0].Offer.MPS = nil
	for _, device := range []string{name + "-mps", name + "-timeslices", name + "-timeslice-1", name + "-", "x" + name + "-timeslice"} {
		if s, ok := node.FindShape(device); ok {
			t.Errorf("FindShape(%q): got %s, want nothing", device, s.Name())
		}
	}
	longest := gpu.GPU{PCI: gpu.PCIAddress{Domain: math.MaxUint32, Bus: 255, Device: 31, Function: 7}, Offer: everything()}
	for _, s := range longest.Shapes() {
		if msgs := validation.IsDNS1123Label(s.Name()); len(msgs) > 0 {
			t.Errorf("name %q: %v", s.Name(), msgs)
		}
	}
}

// TestShapesThatCannotBeSideBySideOverlapAndTheCountersAgree looks at every two shapes of a GPU.
func TestShapesThatCannotBeSideBySideOverlapAndTheCountersAgree(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offering(t, model, false)
		shapes := node.GPUs[0].Shapes()
		all := node.GPUs[0].Counters()
		for _, a := range shapes {
			if !a.IsPartition() && !cmp.Equal(all, a.Consumes()) {
				t.Errorf("%s: %s consumes %v, want everything: %v", model, a.Name(), a.Consumes(), all)
			}
			for _, b := range shapes {
				// One device that many claims have is there once: it takes its counters once.
				if a.IsShare() && a.Share == b.Share {
					if a.Overlaps(b) {
						t.Errorf("%s: %s overlaps itself", model, a.Name())
					}
					continue
				}
				bothParts := a.IsPartition() && b.IsPartition()
				if !bothParts && (!a.Overlaps(b) || a.FitsBeside([]gpu.Shape{b})) {
					t.Errorf("%s: %s and %s can be side by side", model, a.Name(), b.Name())
				}
				if a.Overlaps(b) != b.Overlaps(a) || a.FitsBeside([]gpu.Shape{b}) != b.FitsBeside([]gpu.Shape{a}) {
					t.Errorf("%s: %s beside %s is not what it is the other way round", model, a.Name(), b.Name())
				}
				if a.FitsBeside([]gpu.Shape{b}) && a.Overlaps(b) {
					t.Errorf("%s: %s fits beside %s, which it overlaps", model, a.Name(), b.Name())
				}
			}
			if len(node.GPUs) > 1 {
				for _, b := range node.GPUs[1].Shapes() {
					if a.Overlaps(b) {
						t.Errorf("%s: %s overlaps %s of another GPU", model, a.Name(), b.Name())
					}
				}
			}
		}
	}
}

func TestOnlyOneOfWholeShareAndPartitionIsTrueOfAShape(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			node := offering(t, model, mig)
			for i := range node.GPUs {
				for _, s := range node.GPUs[i].Shapes() {
					n := 0
					for _, is := range []bool{s.IsWhole(), s.IsShare(), s.IsPartition()} {
						if is {
							n++
						}
					}
					if n != 1 {
						t.Errorf("%s: %s is %d of whole, share and partition", model, s.Name(), n)
					}
					if s.IsShare() && s.GPU.Sharing(s.Share) == nil {
						t.Errorf("%s: %s is not shared", model, s.Name())
					}
				}
			}
		}
	}
	for _, offer := range []*gpu.Offer{nil, {}, everything()} {
		g := gpu.GPU{Offer: offer}
		if s := g.Sharing("other"); s != nil {
			t.Errorf("a way to share that does not exist: got %v", s)
		}
		if offer == nil && (g.Sharing(gpu.TimeSlice) != nil || g.Sharing(gpu.MPS) != nil) {
			t.Error("a GPU without a policy is shared")
		}
	}
}

func TestSharedGPUsAreOfferedFromTheMiddleOutward(t *testing.T) {
	tests := map[string]string{
		"hgx-h100":               "3 4 2 5 1 6 0 7",
		"a100-pcie-nvlink-pairs": "1 2 0 3",
		"a30":                    "0 1",
		"t4":                     "0",
	}
	for model, want := range tests {
		node := offering(t, model, false)
		order := gpu.OrderShapes(node.GPUs, nil)
		var got []string
		for i, s := range order.Shared {
			if s.Share != gpu.Shares()[i%2] {
				t.Errorf("%s: %s is at %d: want each GPU's time slices, then its MPS", model, s.Name(), i)
			}
			at := slices.IndexFunc(node.GPUs, func(g gpu.GPU) bool { return g.PCI == s.GPU.PCI })
			if s.Share == gpu.TimeSlice {
				got = append(got, fmt.Sprint(at))
			}
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", model, diff)
		}
	}
}

// TestOfferingSharesMovesNothingElse: with shares, all else stays in the order that facts/packing.md measured, and every
// shape is in one group.
func TestOfferingSharesMovesNothingElse(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			node := offering(t, model, mig)
			with := gpu.OrderShapes(node.GPUs, nil)
			total := len(with.Whole) + len(with.Shared) + len(with.Largest)
			for _, group := range with.Partitions {
				total += len(group)
			}
			want := 0
			for i := range node.GPUs {
				want += len(node.GPUs[i].Shapes())
			}
			if total != want {
				t.Errorf("%s: %d shapes are in order, want all %d", model, total, want)
			}
			lines := orderOf(node.GPUs)
			for i := range node.GPUs {
				node.GPUs[i].Offer = nil
			}
			if diff := cmp.Diff(orderOf(node.GPUs), lines); diff != "" {
				t.Errorf("%s (-without +with shares):\n%s", model, diff)
			}
		}
	}
}

func TestACutNeverGivesMoreThanThereIs(t *testing.T) {
	tests := map[string]struct {
		total, parts, minimum, step int64
		want                        gpu.Cut
	}{
		"even":                {100, 4, 1, 1, gpu.Cut{Total: 100, Default: 25, Minimum: 1, Step: 1}},
		"rounded down":        {100, 3, 1, 5, gpu.Cut{Total: 100, Default: 31, Minimum: 1, Step: 5}},
		"a part is a minimum": {100, 10, 10, 7, gpu.Cut{Total: 100, Default: 10, Minimum: 10, Step: 7}},
		"less than a minimum": {100, 20, 10, 7, gpu.Cut{Total: 100, Default: 10, Minimum: 10, Step: 7}},
		"only the minimum":    {10, 1, 10, 1, gpu.Cut{Total: 10, Default: 10, Minimum: 10, Step: 1}},
		"not the minimum":     {9, 1, 10, 1, gpu.Cut{}},
		"nothing":             {0, 1, 1, 1, gpu.Cut{}},
		"as much as can be":   {math.MaxInt64, 1, 1, math.MaxInt64, gpu.Cut{Total: math.MaxInt64, Default: 1, Minimum: 1, Step: math.MaxInt64}},
	}
	for name, tt := range tests {
		if diff := cmp.Diff(tt.want, gpu.NewCut(tt.total, tt.parts, tt.minimum, tt.step)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
