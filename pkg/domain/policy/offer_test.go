// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

var onDemand = &PartitionOffer{Mode: OnDemand}

// everything is an offer of all tiers.
func everything() Offer {
	return Offer{Whole: true, Partitions: onDemand, TimeSlice: &Sharing{Shares: 4}, MPS: &Sharing{Shares: 10}}
}

// offeredNode is a node of a model whose GPUs offer all tiers, in MIG mode or not.
func offeredNode(t *testing.T, name string, mig bool) *Node {
	t.Helper()
	node := &Node{Node: model(t, name)}
	for i := range node.GPUs {
		node.Offers = append(node.Offers, everything())
		node.GPUs[i].MIG.Enabled = mig && node.GPUs[i].MIG.Capable
	}
	return node
}

// kindsOf words shapes, partitions as their number.
func kindsOf(shapes []gpu.Shape) string {
	var words []string
	partitions := 0
	for _, s := range shapes {
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

func TestOffer_Shapes(t *testing.T) {
	tests := map[string]struct {
		model string
		mig   bool
		offer Offer
		want  string
	}{
		"no policy":                 {"hgx-h100", false, Unrestricted(&gpu.GPU{}), "whole 25"},
		"everything":                {"hgx-h100", false, everything(), "whole timeslice mps 25"},
		"everything in MIG mode":    {"hgx-h100", true, everything(), "whole timeslice mps 25"},
		"nothing":                   {"hgx-h100", false, Offer{}, ""},
		"whole":                     {"hgx-h100", false, Offer{Whole: true}, "whole"},
		"partitions":                {"hgx-h100", false, Offer{Partitions: onDemand}, "25"},
		"time slices":               {"hgx-h100", false, Offer{TimeSlice: &Sharing{Shares: 4}}, "timeslice"},
		"MPS":                       {"hgx-h100", true, Offer{MPS: &Sharing{Shares: 4}}, "mps"},
		"no MPS":                    {"hgx-h100", false, Offer{Whole: true, TimeSlice: &Sharing{}, NoMPS: "off"}, "whole timeslice"},
		"Ampere":                    {"dgx-a100", false, everything(), "whole timeslice mps"},
		"Ampere in MIG mode":        {"dgx-a100", true, everything(), "25"},
		"Ampere, shares, MIG mode":  {"a30", true, Offer{TimeSlice: &Sharing{}, MPS: &Sharing{}}, ""},
		"Ampere, partitions, whole": {"a30", false, Offer{Partitions: onDemand}, ""},
		"no MIG":                    {"t4", false, everything(), "whole timeslice mps"},
	}
	for name, tt := range tests {
		g := model(t, tt.model).GPUs[0]
		g.MIG.Enabled = tt.mig
		if got := kindsOf(tt.offer.Shapes(&g)); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestNode_FindShape(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offeredNode(t, model, false)
		seen := map[string]bool{}
		for i := range node.GPUs {
			g := &node.GPUs[i]
			for _, s := range node.Shapes(g) {
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
	node := offeredNode(t, "t4", false)
	name := node.GPUs[0].PCI.DeviceName()
	node.Offers[0].MPS = nil
	for _, device := range []string{name + "-mps", name + "-timeslices", name + "-timeslice-1", name + "-", "x" + name + "-timeslice"} {
		if s, ok := node.FindShape(device); ok {
			t.Errorf("FindShape(%q): got %s, want nothing", device, s.Name())
		}
	}
	longest := gpu.GPU{PCI: gpu.PCIAddress{Domain: math.MaxUint32, Bus: 255, Device: 31, Function: 7}}
	offer := everything()
	for _, s := range offer.Shapes(&longest) {
		if msgs := validation.IsDNS1123Label(s.Name()); len(msgs) > 0 {
			t.Errorf("name %q: %v", s.Name(), msgs)
		}
	}
}

// TestShape_OverlapsAsCountersDo looks at every two shapes of a GPU.
func TestShape_OverlapsAsCountersDo(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		node := offeredNode(t, model, false)
		shapes := node.Shapes(&node.GPUs[0])
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
				if !bothParts && (!a.Overlaps(b) || a.FitsAlongside([]gpu.Shape{b})) {
					t.Errorf("%s: %s and %s can exist together", model, a.Name(), b.Name())
				}
				if a.Overlaps(b) != b.Overlaps(a) || a.FitsAlongside([]gpu.Shape{b}) != b.FitsAlongside([]gpu.Shape{a}) {
					t.Errorf("%s: %s alongside %s is not what it is the other way round", model, a.Name(), b.Name())
				}
				if a.FitsAlongside([]gpu.Shape{b}) && a.Overlaps(b) {
					t.Errorf("%s: %s fits alongside %s, which it overlaps", model, a.Name(), b.Name())
				}
			}
			if len(node.GPUs) > 1 {
				for _, b := range node.Shapes(&node.GPUs[1]) {
					if a.Overlaps(b) {
						t.Errorf("%s: %s overlaps %s of another GPU", model, a.Name(), b.Name())
					}
				}
			}
		}
	}
}

func TestShape_OneKind(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			node := offeredNode(t, model, mig)
			for i := range node.GPUs {
				for _, s := range node.Shapes(&node.GPUs[i]) {
					n := 0
					for _, is := range []bool{s.IsWhole(), s.IsShare(), s.IsPartition()} {
						if is {
							n++
						}
					}
					if n != 1 {
						t.Errorf("%s: %s is %d of whole, share and partition", model, s.Name(), n)
					}
					if s.IsShare() && node.Offer(s.GPU).Sharing(s) == nil {
						t.Errorf("%s: %s is not shared", model, s.Name())
					}
				}
			}
		}
	}
	unrestricted := Unrestricted(&gpu.GPU{})
	if unrestricted.Sharing(gpu.Shape{Share: gpu.TimeSlice}) != nil || unrestricted.Sharing(gpu.Shape{Share: gpu.MPS}) != nil {
		t.Error("a GPU without a policy is shared")
	}
	for _, offer := range []Offer{unrestricted, {}, everything()} {
		if s := offer.Sharing(gpu.Shape{Share: "other"}); s != nil {
			t.Errorf("a way to share that does not exist: got %v", s)
		}
	}
}

func TestNewCut(t *testing.T) {
	tests := map[string]struct {
		total, parts, minimum, step int64
		want                        Cut
	}{
		"even":                {100, 4, 1, 1, Cut{Total: 100, Default: 25, Minimum: 1, Step: 1}},
		"rounded down":        {100, 3, 1, 5, Cut{Total: 100, Default: 31, Minimum: 1, Step: 5}},
		"a part is a minimum": {100, 10, 10, 7, Cut{Total: 100, Default: 10, Minimum: 10, Step: 7}},
		"less than a minimum": {100, 20, 10, 7, Cut{Total: 100, Default: 10, Minimum: 10, Step: 7}},
		"only the minimum":    {10, 1, 10, 1, Cut{Total: 10, Default: 10, Minimum: 10, Step: 1}},
		"not the minimum":     {9, 1, 10, 1, Cut{}},
		"nothing":             {0, 1, 1, 1, Cut{}},
		"as much as can be":   {math.MaxInt64, 1, 1, math.MaxInt64, Cut{Total: math.MaxInt64, Default: 1, Minimum: 1, Step: math.MaxInt64}},
	}
	for name, tt := range tests {
		if diff := cmp.Diff(tt.want, NewCut(tt.total, tt.parts, tt.minimum, tt.step)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestNode_FindShapeOtherNames(t *testing.T) {
	node := &Node{Node: model(t, "hgx-h100")}
	name := node.GPUs[0].PCI.DeviceName()
	for _, device := range []string{"", "gpu-", name + "-", name + "-mig-19", name + "-mig-19-7", name + "-mig-5-4", name + "-mig-9-2", name + "-mig-19-06",
		name + "0", strings.ToUpper(name), name + "-mig-0-0-0"} {
		if s, ok := node.FindShape(device); ok {
			t.Errorf("FindShape(%q): got %s, want nothing", device, s.Name())
		}
	}
}
