// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Older drivers list no partitions out of MIG mode, and guests can often not reset GPUs.
func TestApply_WantsMIGUncertain(t *testing.T) {
	tests := map[string]struct {
		change     func(g *gpu.GPU)
		wants      bool
		refused    string // by Check
		withWhole  bool   // what a rule without partitions wants
		withoutMIG string // why there are no partitions
	}{
		"lists no partitions out of MIG mode": {
			change: func(g *gpu.GPU) { g.MIG.Profiles, g.MIG.Slices = nil, 0 }, wants: true, withWhole: true,
			withoutMIG: "its driver lists partitions only in MIG mode",
		},
		"passed through": {change: func(g *gpu.GPU) { g.Virtualization = gpu.PassThrough }},
		"passed through, lists none": {
			change:     func(g *gpu.GPU) { g.Virtualization = gpu.PassThrough; g.MIG.Profiles, g.MIG.Slices = nil, 0 },
			refused:    "its driver lists partitions only in MIG mode: use a newer driver, or",
			withoutMIG: "its driver lists partitions only in MIG mode",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			n := model(t, "dgx-a100")
			n.GPUs = n.GPUs[:1]
			tt.change(&n.GPUs[0])
			p := policyOf(t, "{mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}}")
			if err := Check(p, n); (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("Check = %v, want %q", err, tt.refused)
			}
			o := Apply(p, n, Capabilities{}).Offers[0]
			if (o.WantsMIG != nil) != tt.wants || !strings.Contains(o.NoPartitions, tt.withoutMIG) {
				t.Errorf("wants MIG mode: %v; no partitions: %q", o.WantsMIG, o.NoPartitions)
			}
			o = Apply(policyOf(t, "{tiers: [exclusive], mig: {modeChange: whenIdle}}"), n, Capabilities{}).Offers[0]
			if (o.WantsMIG != nil) != tt.withWhole {
				t.Errorf("a whole GPU wants MIG mode: %v", o.WantsMIG)
			}
		})
	}
}

// Clients may be stopped for a GPU by the rule that matches it, whatever it offers.
func TestApply_PauseClients(t *testing.T) {
	p := policyOf(t, "{match: {indexes: [0]}, exclude: true, pauseClients: [a/b]}, {match: {indexes: [1]}, tiers: [exclusive], pauseClients: [a/c, a/d]}")
	offers := Apply(p, model(t, "dgx-a100"), Capabilities{}).Offers
	for i, want := range [][]string{{"a/b"}, {"a/c", "a/d"}, nil} {
		if got := offers[i].PauseClients; !slices.Equal(got, want) {
			t.Errorf("GPU %d: got %v, want %v", i, got, want)
		}
	}
}
