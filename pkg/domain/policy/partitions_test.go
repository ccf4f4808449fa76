// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// model is the inventory of a node model.
func model(t *testing.T, name string) *gpu.Node {
	t.Helper()
	session, err := simulated.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	return session.Node()
}

// places are those of profiles by name at a start, such as 1g.10gb@6, on a GPU.
func places(t *testing.T, g *gpu.GPU, names ...string) []gpu.Place {
	t.Helper()
	all := map[string]gpu.Place{}
	for _, p := range g.MIG.Profiles {
		for _, at := range p.Placements {
			all[fmt.Sprintf("%s@%d", p.Name, at.Start)] = gpu.Place{ProfileID: p.ID, Placement: at}
		}
	}
	var found []gpu.Place
	for _, name := range names {
		at, ok := all[name]
		if !ok {
			t.Fatalf("%s has no %s", g.ProductName, name)
		}
		found = append(found, at)
	}
	return found
}

func words(g *gpu.GPU, places []gpu.Place) []string {
	var list []string
	for _, p := range places {
		list = append(list, fmt.Sprintf("%s@%d", g.MIG.ProfileName(p.ProfileID), p.Placement.Start))
	}
	return list
}

// policyOf is a policy with these rules in YAML.
func policyOf(t *testing.T, rules string) *v1alpha1.NodePolicy {
	t.Helper()
	p, err := v1alpha1.DecodeNodePolicy([]byte(head + "rules: [" + rules + "]"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// partitioned is what is looked at of a GPU's offer.
type partitioned struct {
	Mode         MIGMode
	All          bool // the whole catalog
	Profiles     []string
	Places, Kept []string
	Withdrawn    int // how many of its shapes are
	Shapes       int // partitions among its shapes
	Why          string
}

func partitionedBy(n *Node, i int) partitioned {
	g, offer := &n.GPUs[i], &n.Offers[i]
	got := partitioned{Why: offer.NoPartitions}
	if o := offer.Partitions; o != nil {
		got.Mode, got.All, got.Places, got.Kept = o.Mode, o.Profiles == nil && o.Mode == OnDemand, words(g, o.Places), words(g, o.Kept)
		for _, id := range o.Profiles {
			got.Profiles = append(got.Profiles, g.MIG.ProfileName(id))
		}
	}
	for _, s := range n.Shapes(g) {
		if s.IsPartition() {
			got.Shapes++
		}
		if offer.IsWithdrawn(s) {
			got.Withdrawn++
		}
	}
	return got
}

// The mode that an idle GPU is reset for is the one that the tiers want, on boards that need a reset.
func TestApply_WantsMIG(t *testing.T) {
	tests := map[string]struct{ model, rule, want string }{
		"layout":            {"dgx-a100", "{mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}}", "on"},
		"on demand":         {"a30", "{tiers: [mig], mig: {modeChange: whenIdle}}", "on"},
		"whole":             {"dgx-a100", "{tiers: [exclusive, mps], mig: {modeChange: whenIdle}}", "off"},
		"never":             {"dgx-a100", "{tiers: [exclusive], mig: {modeChange: never}}", ""},
		"nothing said":      {"dgx-a100", "{tiers: [mig]}", ""},
		"no reset needed":   {"hgx-h100", "{tiers: [mig], mig: {modeChange: whenIdle}}", ""},
		"no MIG, and whole": {"l40s", "{tiers: [exclusive], mig: {modeChange: whenIdle}}", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, node := policyOf(t, tt.rule), model(t, tt.model)
			if err := Check(p, node); err != nil {
				t.Error(err)
			}
			got := ""
			if wants := Apply(p, node, Capabilities{}).Offers[0].WantsMIG; wants != nil {
				got = map[bool]string{true: "on", false: "off"}[*wants]
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	err := Check(policyOf(t, "{tiers: [mig], mig: {modeChange: whenIdle}}"), model(t, "l40s"))
	if err == nil || !strings.Contains(err.Error(), "rules[0].mig: NVIDIA L40S cannot be partitioned: match only GPUs that can be") {
		t.Errorf("partitions of a board without MIG: %v", err)
	}
}

func TestApply_Partitions(t *testing.T) {
	const off = "MIG mode is off, and this board changes it only with a reset: drain the node, label it " + v1alpha1.ReleaseDriverLabel +
		"=true, run nvidia-smi -i <GPU> -mig 1, remove the label (docs/troubleshooting.md, MIG mode by hand), or have the policy say mig.modeChange: whenIdle"
	unasked := []string{"1g.24gb", "1g.24gb+me", "2g.48gb", "4g.96gb"}
	tests := map[string]struct {
		model, rule      string
		there, allocated []string
		want             partitioned
	}{
		"on demand":                            {"hgx-h100", "{}", nil, nil, partitioned{Mode: OnDemand, All: true, Shapes: 25}},
		"on demand, allocated":                 {"hgx-h100", "{}", nil, []string{"1g.10gb@6"}, partitioned{Mode: OnDemand, All: true, Shapes: 25}},
		"a catalog":                            {"hgx-h100", "{mig: {profiles: [3g.40gb, 1g.10gb+me]}}", nil, nil, partitioned{Mode: OnDemand, Profiles: []string{"3g.40gb", "1g.10gb+me"}, Shapes: 9}},
		"a catalog without what is allocated":  {"hgx-h100", "{mig: {profiles: [3g.40gb]}}", nil, []string{"1g.10gb@6", "3g.40gb@0"}, partitioned{Mode: OnDemand, Profiles: []string{"3g.40gb"}, Kept: []string{"1g.10gb@6"}, Shapes: 3, Withdrawn: 1}},
		"no tier mig":                          {"hgx-h100", "{tiers: [exclusive]}", nil, nil, partitioned{}},
		"no tier mig, allocated":               {"hgx-h100", "{tiers: [exclusive]}", nil, []string{"1g.10gb@6"}, partitioned{Mode: OnDemand, Profiles: nil, Kept: []string{"1g.10gb@6"}, Shapes: 1, Withdrawn: 1}},
		"a layout":                             {"hgx-h100", "{mig: {layout: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}}}", nil, nil, partitioned{Mode: Layout, Places: []string{"1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4"}, Shapes: 4}},
		"a layout over what is there":          {"hgx-h100", "{mig: {layout: {1g.10gb: 2, 3g.40gb: 1}}}", []string{"1g.10gb@6", "3g.40gb@0"}, nil, partitioned{Mode: Layout, Places: []string{"3g.40gb@0", "1g.10gb@5", "1g.10gb@6"}, Shapes: 3}},
		"a layout over what is allocated":      {"hgx-h100", "{mig: {layout: {1g.10gb: 2}}}", nil, []string{"1g.10gb@2"}, partitioned{Mode: Layout, Places: []string{"1g.10gb@2", "1g.10gb@6"}, Shapes: 2}},
		"a layout without what is allocated":   {"hgx-h100", "{mig: {layout: {3g.40gb: 2}}}", []string{"1g.10gb@2"}, []string{"1g.10gb@2"}, partitioned{Mode: Layout, Places: []string{"3g.40gb@0", "3g.40gb@4"}, Kept: []string{"1g.10gb@2"}, Shapes: 3, Withdrawn: 1}},
		"a layout that does not fit":           {"hgx-h100", "{mig: {layout: {3g.40gb: 2, 1g.10gb: 1}}}", nil, nil, partitioned{Why: "3g.40gb ×2 and 1g.10gb ×1 do not fit an NVIDIA H100 80GB HBM3; free after 3g.40gb ×2: none"}},
		"it does not fit, and one's allocated": {"hgx-h100", "{mig: {layout: {3g.40gb: 3}}}", nil, []string{"1g.10gb@2"}, partitioned{Mode: OnDemand, Kept: []string{"1g.10gb@2"}, Shapes: 1, Withdrawn: 1, Why: "3g.40gb ×3 do not fit an NVIDIA H100 80GB HBM3; free after 3g.40gb ×2: none"}},
		"a layout of another board":            {"a30", "{mig: {layout: {1g.10gb: 1}}}", nil, nil, partitioned{Why: "NVIDIA A30 has no profile 1g.10gb: it has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"}},
		"a catalog of two boards":              {"hgx-h100", "{mig: {profiles: [1g.5gb, 3g.40gb]}}", nil, nil, partitioned{Mode: OnDemand, Profiles: []string{"3g.40gb"}, Shapes: 2}},
		"a catalog of another board":           {"a30", "{mig: {profiles: [1g.10gb, 2g.20gb]}}", nil, nil, partitioned{Why: "NVIDIA A30 has no profile 1g.10gb, 2g.20gb: it has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"}},
		"what is there":                        {"hgx-h100", "{mig: {mode: existing}}", []string{"3g.40gb@4", "1g.10gb@2"}, []string{"3g.40gb@4"}, partitioned{Mode: Existing, Places: []string{"1g.10gb@2", "3g.40gb@4"}, Shapes: 2}},
		"what is there no more":                {"hgx-h100", "{mig: {mode: existing}}", nil, []string{"3g.40gb@4"}, partitioned{Mode: Existing, Kept: []string{"3g.40gb@4"}, Shapes: 1, Withdrawn: 1}},
		"named variants unasked":               {"rtx-pro-6000", "{}", nil, nil, partitioned{Mode: OnDemand, Profiles: unasked, Shapes: 11}},
		"named variants, some":                 {"rtx-pro-6000", "{mig: {profiles: [1g.24gb, 1g.24gb+me.all, 1g.24gb-me, 4g.96gb+gfx]}}", nil, nil, partitioned{Mode: OnDemand, Profiles: []string{"1g.24gb", "1g.24gb+me.all", "1g.24gb-me", "4g.96gb+gfx"}, Shapes: 13}},
		"named variants, allocated":            {"rtx-pro-6000", "{}", nil, []string{"1g.24gb-me@9"}, partitioned{Mode: OnDemand, Profiles: unasked, Kept: []string{"1g.24gb-me@9"}, Shapes: 12, Withdrawn: 1}},
		"named variants, without some":         {"rtx-pro-6000", "{publish: {omitProfiles: [+me]}}", nil, nil, partitioned{Mode: OnDemand, Profiles: []string{"1g.24gb", "2g.48gb", "4g.96gb"}, Shapes: 7}},
		"named variants in a layout":           {"rtx-pro-6000", "{mig: {layout: {1g.24gb+me.all: 1, 1g.24gb-me: 3}}}", nil, nil, partitioned{Mode: Layout, Places: []string{"1g.24gb+me.all@0", "1g.24gb-me@3", "1g.24gb-me@6", "1g.24gb-me@9"}, Shapes: 4}},
		"named variants that are there":        {"rtx-pro-6000", "{mig: {mode: existing}}", []string{"2g.48gb+gfx@6"}, nil, partitioned{Mode: Existing, Places: []string{"2g.48gb+gfx@6"}, Shapes: 1}},
		"MIG mode off":                         {"dgx-a100", "{}", nil, nil, partitioned{Mode: OnDemand, All: true}},
		"MIG mode off, asked for":              {"dgx-a100", "{tiers: [mig]}", nil, nil, partitioned{Mode: OnDemand, All: true, Why: off}},
		"MIG mode off, a layout":               {"dgx-a100", "{mig: {layout: {3g.40gb: 2}}}", nil, nil, partitioned{Mode: Layout, Places: []string{"3g.40gb@0", "3g.40gb@4"}, Why: off}},
		"a board without":                      {"t4", "{}", nil, nil, partitioned{Mode: OnDemand, All: true}},
		"a board without, asked for":           {"t4", "{tiers: [mig, mps]}", nil, nil, partitioned{Why: "Tesla T4 cannot be partitioned"}},
		"a board without, a layout":            {"l40s", "{mig: {layout: {1g.10gb: 1}}}", nil, nil, partitioned{Why: "NVIDIA L40S cannot be partitioned"}},
		"excluded":                             {"hgx-h100", "{exclude: true}", []string{"1g.10gb@2"}, nil, partitioned{}},
		"excluded, allocated":                  {"hgx-h100", "{exclude: true}", []string{"1g.10gb@2"}, []string{"1g.10gb@2"}, partitioned{Mode: OnDemand, Kept: []string{"1g.10gb@2"}, Shapes: 1, Withdrawn: 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := model(t, tt.model)
			caps := Capabilities{
				Allocated:  func(g *gpu.GPU) gpu.Allocated { return gpu.Allocated{Places: places(t, g, tt.allocated...)} },
				Partitions: func(g *gpu.GPU) []gpu.Place { return places(t, g, tt.there...) },
			}
			offered := Apply(policyOf(t, tt.rule), n, caps)
			for i := range offered.GPUs {
				if diff := cmp.Diff(tt.want, partitionedBy(offered, i)); diff != "" {
					t.Fatalf("GPU %d (-want +got):\n%s", i, diff)
				}
				// The counters of what is allocated must not change, or the scheduler gives the same twice.
				if diff := cmp.Diff(n.GPUs[i].Counters(), offered.GPUs[i].Counters()); diff != "" {
					t.Fatalf("counters of GPU %d (-without +with policy):\n%s", i, diff)
				}
			}
		})
	}
}

func TestApply_Excluded(t *testing.T) {
	p := policyOf(t, "{match: {uuids: [GPU-a]}, exclude: true, health: {reaction: NoExecute, ignoreXIDs: [94, 63]}}, {tiers: [exclusive]}")
	sick := Health{Effect: "NoExecute", IgnoreXIDs: []int{94, 63}}
	if diff := cmp.Diff([]Offer{{Excluded: true, Health: sick}, {Whole: true}}, offers(Apply(p, node(), Capabilities{}))); diff != "" {
		t.Errorf("nothing allocated (-want +got):\n%s", diff)
	}
	all := gpu.Tiers{Whole: true, TimeSlice: true, MPS: true}
	got := Apply(p, node(), Capabilities{Allocated: func(*gpu.GPU) gpu.Allocated { return gpu.Allocated{Tiers: all} }})
	offer := got.Offers[0]
	if !offer.Excluded || offer.Withdrawn != all {
		t.Errorf("everything allocated: got %+v, want it excluded and withdrawn", offer)
	}
	shapes := got.Shapes(&got.GPUs[0])
	if len(shapes) != 3 || slices.ContainsFunc(shapes, func(s gpu.Shape) bool { return !offer.IsWithdrawn(s) }) {
		t.Errorf("everything allocated: got %v, want three shapes, all withdrawn", shapes)
	}
}

// A device that is gone while it is allocated is one whose counters the scheduler forgets.
func TestApply_AllocatedNoLongerOffered(t *testing.T) {
	large := policyOf(t, "{timeSlice: {memory: {minimum: 100Gi}}, mps: {memory: {minimum: 100Gi}}}")
	away := errors.New("no supervisor answers")
	allocated := func(*gpu.GPU) gpu.Allocated { return gpu.Allocated{Tiers: gpu.Tiers{TimeSlice: true, MPS: true}} }
	const why = "the policy's minimum share of memory exceeds the 81920 MiB of the GPU"
	for name, tt := range map[string]struct {
		p              *v1alpha1.NodePolicy
		mps            error
		timeSlice, why string // why there are no new time slices, and no shares by MPS
	}{
		"a minimum too large": {large, nil, why, why},
		"no supervisor":       {&v1alpha1.NodePolicy{}, away, "", "no supervisor answers"},
	} {
		o := offers(Apply(tt.p, node(), Capabilities{MPS: tt.mps, Allocated: allocated}))[0]
		if o.TimeSlice == nil || o.MPS == nil || o.NoTimeSlice != tt.timeSlice || o.NoMPS != tt.why || o.Withdrawn.TimeSlice != (tt.timeSlice != "") || !o.Withdrawn.MPS {
			t.Errorf("%s: got %+v, want both shared, and withdrawn where there is a reason", name, o)
		}
		if o := offers(Apply(tt.p, node(), Capabilities{MPS: tt.mps}))[0]; o.MPS != nil || o.NoMPS != tt.why || o.Withdrawn != (gpu.Tiers{}) {
			t.Errorf("%s, nothing allocated: got %+v, want no MPS", name, o)
		}
	}
}

func TestApply_SharingDefaults(t *testing.T) {
	p := policyOf(t, `{timeSlice: {interval: Long, memory: {default: 20Gi}}, mps: {priority: BelowNormal, memory: {minimum: 2Gi, step: 2Gi, default: 40Gi}, cores: {minimum: 10, step: 20, default: 50}}}`)
	o := offers(Apply(p, node(), Capabilities{}))[0]
	want := [2]*Sharing{
		{Shares: 4, Memory: cut(80*gib, 20*gib, gib, gib/4), Enforcement: NotEnforced, Interval: "Long"},
		{Shares: 10, Memory: cut(80*gib, 40*gib, 2*gib, 2*gib), Cores: cut(100, 50, 10, 20), SharedMemory: gib, Enforcement: EnforcedPerProcess, Priority: "BelowNormal"},
	}
	if diff := cmp.Diff(want, [2]*Sharing{o.TimeSlice, o.MPS}); diff != "" {
		t.Errorf("time slices and MPS (-want +got):\n%s", diff)
	}
	o = offers(Apply(policyOf(t, "{timeSlice: {memory: {default: 81Gi}}, mps: {memory: {default: 80Gi}}}"), node(), Capabilities{}))[0]
	if o.TimeSlice != nil || o.NoTimeSlice != "the policy's default share of memory, 81Gi, exceeds the 81920 MiB of the GPU" || o.MPS == nil || o.MPS.Memory.Default != 80*gib {
		t.Errorf("a default of everything, and of more: got %+v", o)
	}
}

func TestCheck(t *testing.T) {
	const (
		has  = "it has 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"
		h100 = "NVIDIA H100 80GB HBM3 has no profile 1g.5gb: " + has
	)
	tests := []struct {
		model, rules string
		want         []string
	}{
		{"hgx-h100", "", nil},
		{"hgx-h100", "{mig: {profiles: [1g.10gb, 1g.10gb+me, 7g.80gb]}}", nil},
		{"hgx-h100", "{mig: {profiles: [1g.10gb, 1g.5gb]}}", []string{"rules[0].mig.profiles[1]: " + h100}},
		{"hgx-h100", "{mig: {layout: {1g.10gb: 7}}}", nil},
		{"hgx-h100", "{match: {indexes: [3]}, mig: {layout: {1g.10gb: 1, 1g.5gb: 1}}}, {mig: {layout: {3g.40gb: 2, 1g.10gb: 1}}}", []string{
			"rules[1].mig.layout: 3g.40gb ×2 and 1g.10gb ×1 do not fit an NVIDIA H100 80GB HBM3; free after 3g.40gb ×2: none",
			"rules[0].mig.layout[1g.5gb]: " + h100,
		}},
		{"hgx-h100", "{match: {productNames: [NVIDIA A30]}, mig: {layout: {1g.10gb: 100}}}", nil},
		{"hgx-h100", "{mig: {mode: existing}}", nil},
		{"hgx-h100", "{mig: {profiles: [1g.10gb-me]}}", []string{"rules[0].mig.profiles[0]: NVIDIA H100 80GB HBM3 has no profile 1g.10gb-me: " + has}},
		{"rtx-pro-6000", "{mig: {layout: {1g.24gb+me.all: 1, 2g.48gb-me: 1, 1g.24gb-me: 1}}}", nil},
		{"rtx-pro-6000", "{mig: {layout: {1g.24gb+me.all: 1, 1g.24gb+gfx: 1}}}", []string{
			"rules[0].mig.layout: 1g.24gb+me.all ×1 and 1g.24gb+gfx ×1 do not fit an NVIDIA RTX PRO 6000 Blackwell Server Edition; free after 1g.24gb+me.all ×1: 1g.24gb-me ×3 or 2g.48gb-me ×1",
		}},
		{"dgx-a100", "{mig: {layout: {3g.40gb: 2}}}", nil}, // that MIG mode is off is no fault of the policy
		{"t4", "{}", nil},
		{"t4", "{tiers: [exclusive]}", nil},
		{"t4", "{exclude: true}", nil},
		{"t4", "{tiers: [exclusive, mig]}", []string{"rules[0].tiers[1]: Tesla T4 cannot be partitioned: leave mig out, or match only GPUs that can be"}},
		{"l40s", "{mig: {layout: {1g.10gb: 1}}}", []string{"rules[0].mig: NVIDIA L40S cannot be partitioned: match only GPUs that can be"}},
		{"l40s", "{mig: {mode: existing}}", nil},
		{"l40s", "{tiers: [exclusive, mig], mig: {mode: existing}}", nil},
	}
	for _, tt := range tests {
		n := model(t, tt.model)
		var got []string
		for _, err := range v1alpha1.ProblemsOf(Check(policyOf(t, tt.rules), n)) {
			got = append(got, err.Error())
		}
		slices.Sort(got)
		slices.Sort(tt.want)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s on %s (-want +got):\n%s", tt.rules, tt.model, diff)
		}
	}
}

func TestCheck_NoPlacements(t *testing.T) {
	n := node()
	for i := range n.GPUs {
		n.GPUs[i].MIG = gpu.MIG{Capable: true}
	}
	const why = "NVIDIA H100 80GB HBM3 cannot be partitioned: its driver reports no placements of partitions; one too old for the board reports none"
	for rules, want := range map[string]string{
		"{tiers: [mig]}": "", "{mig: {mode: onDemand}}": "", "{mig: {mode: existing}}": "",
		"{match: {uuids: [GPU-a]}, mig: {profiles: [1g.10gb]}}":  "rules[0].mig: " + why + ": match only GPUs that can be",
		"{match: {uuids: [GPU-a]}, mig: {layout: {1g.10gb: 1}}}": "rules[0].mig: " + why + ": match only GPUs that can be",
	} {
		p := policyOf(t, rules)
		if err := Check(p, n); (err != nil) != (want != "") || err != nil && err.Error() != want {
			t.Errorf("%s: got %v, want %q", rules, err, want)
		}
		if got := offers(Apply(p, n, Capabilities{}))[0]; got.Partitions != nil || got.NoPartitions != why {
			t.Errorf("%s: got %+v, want no partitions because %q", rules, got, why)
		}
	}
}

// A policy that Check passes is offered in full on every node model: the layout fits, and every profile is there.
func TestCheck_EveryNodeModel(t *testing.T) {
	for name, n := range allNodes(t) {
		catalog := n.GPUs[0].MIG.Catalog()
		for _, profile := range append(catalog, "1g.10gb", "banana") {
			for _, rule := range []*v1alpha1.MIGPolicy{{Profiles: []string{profile}}, {Layout: map[string]int32{profile: 1}}, {Layout: map[string]int32{profile: 2}}} {
				p := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{MIG: rule}}}
				err := Check(p, n)
				got := Apply(p, n, Capabilities{}).Offers[0]
				// MIG mode may be off, which is another matter.
				if offered := got.Partitions != nil; offered != (err == nil) || !offered && got.NoPartitions == "" {
					t.Errorf("%s, %+v: checked: %v, offered %v because %q", name, rule, err, got.Partitions, got.NoPartitions)
				}
				if err == nil && !slices.Contains(catalog, profile) {
					t.Errorf("%s: no error of profile %s, which is not among %s", name, profile, strings.Join(catalog, ", "))
				}
				if err == nil && len(rule.Layout) > 0 && len(got.Partitions.Places) != int(slices.Max(slices.Collect(maps.Values(rule.Layout)))) {
					t.Errorf("%s, %+v: got places %v", name, rule.Layout, got.Partitions.Places)
				}
			}
		}
	}
}

func TestModel_MIGMode(t *testing.T) {
	p := policyOf(t, "{match: {indexes: [0]}, tiers: [mig]}, {match: {indexes: [1]}, mig: {layout: {3g.40gb: 2}}}, {match: {indexes: [2]}, exclude: true}, {}")
	n := model(t, "dgx-a100")
	made, devices := InMIGMode(p, n)
	if diff := cmp.Diff([]string{n.GPUs[0].PCI.DeviceName(), n.GPUs[1].PCI.DeviceName()}, devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	for i := range made.GPUs {
		if on := i < 2; made.GPUs[i].MIG.Enabled != on || n.GPUs[i].MIG.Enabled {
			t.Errorf("GPU %d: in MIG mode %t, and before %t, want %t and never", i, made.GPUs[i].MIG.Enabled, n.GPUs[i].MIG.Enabled, on)
		}
	}
	if got := partitionedBy(Apply(p, made, Capabilities{}), 1); got.Shapes != 2 || got.Why != "" {
		t.Errorf("got %+v, want two partitions", got)
	}
	if _, devices := InMIGMode(p, model(t, "hgx-h100")); devices != nil {
		t.Errorf("boards that change it at once: got %v", devices)
	}
}
