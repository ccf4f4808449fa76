// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// sharedShapes are the names of a GPU's shared partitions, without the GPU's, and of those that are withdrawn.
func sharedShapes(n *Node, i int) (offered, withdrawn []string) {
	g := &n.GPUs[i]
	for _, s := range n.Shapes(g) {
		if !s.IsPartition() || !s.IsShare() {
			continue
		}
		name := strings.TrimPrefix(s.Name(), g.PCI.DeviceName()+"-")
		if n.Offer(g).IsWithdrawn(s) {
			withdrawn = append(withdrawn, name)
		} else {
			offered = append(offered, name)
		}
	}
	return offered, withdrawn
}

func TestPartitionSharing_Shapes(t *testing.T) {
	upper := gpu.SharedPlace{Place: gpu.Place{ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4}}, Share: gpu.MPS}
	tests := map[string]struct {
		rule               string
		caps               Capabilities
		offered, withdrawn []string
		notes              int
	}{
		"none":                   {rule: "{}"},
		"by MPS":                 {rule: "{mig: {share: [{profile: 3g.40gb, mps: {}}]}}", offered: []string{"mig-9-0-mps", "mig-9-4-mps"}},
		"both ways":              {rule: "{mig: {share: [{profile: 4g.40gb, mps: {}, timeSlice: {}}]}}", offered: []string{"mig-5-0-timeslice", "mig-5-0-mps"}},
		"not among the profiles": {rule: "{mig: {profiles: [1g.10gb], share: [{profile: 4g.40gb, mps: {}}]}}", offered: []string{"mig-5-0-mps"}},
		"of a layout":            {rule: "{mig: {layout: {3g.40gb: 1, 4g.40gb: 1}, share: [{profile: 3g.40gb, mps: {}}]}}", offered: []string{"mig-9-4-mps"}},
		"of those that exist": {
			rule:    "{mig: {mode: existing, share: [{profile: 3g.40gb, mps: {}}]}}",
			caps:    Capabilities{Partitions: func(*gpu.GPU) []gpu.Place { return []gpu.Place{upper.Place} }},
			offered: []string{"mig-9-4-mps"},
		},
		"no supervisor":           {rule: "{mig: {share: [{profile: 4g.40gb, mps: {}, timeSlice: {}}]}}", caps: Capabilities{MPS: errors.New("none")}, offered: []string{"mig-5-0-timeslice"}, notes: 1},
		"no consumable capacity":  {rule: "{mig: {share: [{profile: 4g.40gb, mps: {}, timeSlice: {}}]}}", caps: Capabilities{Shares: errors.New("old")}, notes: 2},
		"allocated, and no more":  {rule: "{}", caps: allocatedShared(upper), withdrawn: []string{"mig-9-4-mps"}},
		"allocated, in other way": {rule: "{mig: {share: [{profile: 3g.40gb, timeSlice: {}}]}}", caps: allocatedShared(upper), offered: []string{"mig-9-0-timeslice", "mig-9-4-timeslice"}, withdrawn: []string{"mig-9-4-mps"}},
		"allocated, of a layout":  {rule: "{mig: {layout: {4g.40gb: 1, 3g.40gb: 1}, share: [{profile: 4g.40gb, mps: {}}]}}", caps: allocatedShared(upper), offered: []string{"mig-5-0-mps"}, withdrawn: []string{"mig-9-4-mps"}},
		"allocated, without MIG":  {rule: "{tiers: [exclusive]}", caps: allocatedShared(upper), withdrawn: []string{"mig-9-4-mps"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := Apply(policyOf(t, tt.rule), model(t, "hgx-h100"), tt.caps)
			offered, withdrawn := sharedShapes(n, 0)
			if diff := cmp.Diff(tt.offered, offered); diff != "" {
				t.Errorf("offered (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.withdrawn, withdrawn); diff != "" {
				t.Errorf("withdrawn (-want +got):\n%s", diff)
			}
			if notes := n.Offers[0].NotShared; len(notes) != tt.notes {
				t.Errorf("got the notes %q, want %d", notes, tt.notes)
			}
			for _, s := range n.Shapes(&n.GPUs[0]) {
				if found, ok := n.FindShape(s.Name()); !ok || found != s {
					t.Errorf("%s is not found by its name", s.Name())
				}
			}
		})
	}
}

// allocatedShared has a shared partition of the first GPU allocated.
func allocatedShared(at gpu.SharedPlace) Capabilities {
	return Capabilities{Allocated: func(g *gpu.GPU) gpu.Allocated {
		if g.Index > 0 {
			return gpu.Allocated{}
		}
		return gpu.Allocated{Shared: []gpu.SharedPlace{at}}
	}}
}

// Amounts are those of the partition.
func TestPartitionSharing_Amounts(t *testing.T) {
	tests := map[string]struct {
		share  string
		shares int64
		cores  Cut
		memory Cut
	}{
		"eight of three eighths": { // 60 multiprocessors, 40448 MiB
			"{profile: 3g.40gb, mps: {shares: 8}}", 8, Cut{100, 12, 2, 1}, Cut{40448 << 20, 4864 << 20, 1 << 30, 256 << 20},
		},
		"as many as MPS takes there": { // 48 clients of seven compute slices
			"{profile: 3g.40gb, mps: {shares: 30}}", 20, Cut{100, 5, 2, 1}, Cut{40448 << 20, 1792 << 20, 1 << 30, 256 << 20},
		},
		"of the smallest": { // 16 multiprocessors
			"{profile: 1g.10gb, mps: {}}", 6, Cut{100, 16, 7, 1}, Cut{9984 << 20, 1536 << 20, 1 << 30, 256 << 20},
		},
		"steps": {
			"{profile: 3g.40gb, mps: {shares: 4, cores: {step: 5}}}", 4, Cut{100, 21, 6, 5}, Cut{40448 << 20, 9984 << 20, 1 << 30, 256 << 20},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := Apply(policyOf(t, "{mig: {share: ["+tt.share+"]}}"), model(t, "hgx-h100"), Capabilities{})
			shared := n.Offers[0].Partitions.Shared
			if len(shared) != 1 {
				t.Fatalf("got %+v, want one", shared)
			}
			s := shared[0].Sharing
			if s.Shares != tt.shares || s.Cores != tt.cores || s.Memory != tt.memory || s.Enforcement != NotEnforced {
				t.Errorf("got %+v, want %d shares, %+v cores, %+v memory, not enforced", s, tt.shares, tt.cores, tt.memory)
			}
		})
	}
	inTime := Apply(policyOf(t, "{mig: {share: [{profile: 3g.40gb, timeSlice: {shares: 2}}]}}"), model(t, "hgx-h100"),
		Capabilities{CgroupMemory: func(*gpu.GPU) bool { return true }}).Offers[0].Partitions.Shared[0].Sharing
	if want := (Cut{40448 << 20, 20224 << 20, 1 << 30, 256 << 20}); inTime.Shares != 2 || inTime.Memory != want || inTime.Enforcement != NotEnforced {
		t.Errorf("time slices: got %+v, want two with %+v, not enforced", inTime, want)
	}
}

func TestCheck_PartitionShares(t *testing.T) {
	tests := map[string]struct {
		model, rule string
		want        []string
	}{
		"fits":                     {"hgx-h100", "{mig: {share: [{profile: 3g.40gb, mps: {shares: 8}}]}}", nil},
		"no such profile":          {"hgx-h100", "{mig: {share: [{profile: 3g.20gb, mps: {}}]}}", []string{"rules[0].mig.share[0].profile: NVIDIA H100 80GB HBM3 has no profile 3g.20gb: it has 1g.10gb"}},
		"of existing ones":         {"hgx-h100", "{mig: {mode: existing, share: [{profile: 3g.20gb, mps: {}}]}}", []string{"rules[0].mig.share[0].profile: NVIDIA H100 80GB HBM3 has no profile 3g.20gb"}},
		"no partitions":            {"l40s", "{mig: {share: [{profile: 3g.20gb, mps: {}}]}}", []string{"rules[0].mig: NVIDIA L40S cannot be partitioned"}},
		"shares":                   {"a30", "{mig: {share: [{profile: 1g.6gb, mps: {shares: 15}}]}}", []string{"rules[0].mig.share[0].mps.shares: with 15 shares, a share of a 1g.6gb partition is less than one of its 14 multiprocessors: use 14 at most"}},
		"least cores":              {"hgx-h100", "{mig: {share: [{profile: 3g.40gb, mps: {cores: {minimum: 1}}}]}}", []string{"rules[0].mig.share[0].mps.cores.minimum: 1 percent of a 3g.40gb partition is less than one of its 60 multiprocessors: use 2 or more"}},
		"cores by default":         {"hgx-h100", "{mig: {share: [{profile: 1g.10gb, mps: {cores: {default: 5}}}]}}", []string{"rules[0].mig.share[0].mps.cores.default: 5 percent of a 1g.10gb partition is less than one of its 16 multiprocessors: use 7 or more"}},
		"least memory":             {"hgx-h100", "{mig: {share: [{profile: 1g.10gb, mps: {memory: {minimum: 20Gi}}}]}}", []string{"rules[0].mig.share[0].mps.memory: 1g.10gb: the policy's minimum share of memory exceeds the 9984 MiB of the partition"}},
		"memory of time slices":    {"hgx-h100", "{mig: {share: [{profile: 1g.10gb, timeSlice: {memory: {minimum: 1Gi, step: 1Gi, default: 20Gi}}}]}}", []string{"rules[0].mig.share[0].timeSlice.memory: 1g.10gb: the policy's default share of memory, 20Gi, exceeds the 9984 MiB"}},
		"layout, checked as it is": {"hgx-h100", "{mig: {layout: {3g.40gb: 2}, share: [{profile: 3g.40gb, mps: {}}]}}", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := Check(policyOf(t, tt.rule), model(t, tt.model))
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// Shared partitions consume what those for one claim consume, and two of a GPU exclude each other as those do.
func TestPartitionSharing_Counters(t *testing.T) {
	for _, name := range []string{"hgx-h100", "dgx-a100", "a30", "rtx-pro-6000"} {
		node := model(t, name)
		for i := range node.GPUs {
			node.GPUs[i].MIG.Enabled = true
		}
		g := &node.GPUs[0]
		var shares []string
		for _, p := range g.MIG.Catalog() {
			shares = append(shares, "{profile: "+p+", mps: {}, timeSlice: {}}")
		}
		n := Apply(policyOf(t, "{mig: {share: ["+strings.Join(shares, ", ")+"]}}"), node, Capabilities{})
		all := n.Shapes(g)
		for _, a := range all {
			if a.IsPartition() && !cmp.Equal(a.Consumes(), a.Unshared().Consumes()) {
				t.Errorf("%s: %s consumes %v", name, a.Name(), a.Consumes())
			}
			for _, b := range all {
				same := a.IsShare() && a == b
				if want := !same && (!a.IsPartition() || !b.IsPartition() || a.Placement.Overlaps(b.Placement)); a.Overlaps(b) != want {
					t.Errorf("%s: %s overlaps %s: %t, want %t", name, a.Name(), b.Name(), !want, want)
				}
			}
		}
		if n := len(slices.DeleteFunc(all, func(s gpu.Shape) bool { return !s.IsPartition() || !s.IsShare() })); n != 2*len(g.PartitionShapes()) {
			t.Errorf("%s: %d shared partitions, want two ways for each of %d", name, n, len(g.PartitionShapes()))
		}
	}
}
