// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

var errDropped = errors.New("counters are dropped")

// In a cluster that drops counters a GPU offers the first of its tiers that needs none, and what is allocated.
func TestApply_Uncounted(t *testing.T) {
	small := gpu.Place{ProfileID: 19, Placement: gpu.Placement{Start: 0, Size: 1}}
	for name, test := range map[string]struct {
		rules     string
		shares    error
		allocated gpu.Allocated
		enabled   bool // MIG mode, which only a reset changes
		want      string
		why       [3]bool // no partitions, time slices and MPS shares
	}{
		"everything":                    {rules: "{}", want: "whole", why: [3]bool{true, true, true}},
		"exclusive":                     {rules: "{tiers: [exclusive]}", want: "whole"},
		"quotas":                        {rules: "{tiers: [exclusive], publish: {counters: [memory]}}", want: "whole"},
		"partitions on demand":          {rules: "{tiers: [mig]}", why: [3]bool{true}},
		"partitions on demand, and MPS": {rules: "{tiers: [mig, mps]}", want: "mps", why: [3]bool{true}},
		"layout":                        {rules: "{mig: {layout: {1g.40gb: 2}}}", want: "2"},
		"layout, shared":                {rules: "{mig: {layout: {1g.40gb: 1}, share: [{profile: 1g.40gb, mps: {}}]}}", want: "1"},
		"time slices":                   {rules: "{tiers: [timeSlice]}", want: "timeslice"},
		"time slices, uncounted, too":   {rules: "{tiers: [timeSlice]}", shares: errDropped, why: [3]bool{false, true}},
		"two kinds of shares":           {rules: "{tiers: [mps, timeSlice]}", want: "timeslice", why: [3]bool{false, false, true}},
		"a partition is allocated":      {rules: "{}", allocated: gpu.Allocated{Places: []gpu.Place{small}}, want: "1", why: [3]bool{true, true, true}},
		"the whole GPU is allocated":    {rules: "{tiers: [mig]}", allocated: gpu.Allocated{Tiers: gpu.Tiers{Whole: true}}, want: "whole", why: [3]bool{true}},
		"in MIG mode, which stays":      {rules: "{}", enabled: true, why: [3]bool{true, true, true}},
		"in MIG mode, which stays, layout": {
			rules: "{mig: {layout: {1g.40gb: 2}}}", enabled: true, want: "2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := node()
			n.GPUs = n.GPUs[:1]
			g := &n.GPUs[0]
			g.MIG.Enabled, g.MIG.NeedsReset = test.enabled, test.enabled
			offered := Apply(policyOf(t, test.rules), n, Capabilities{
				Counters: errDropped, Shares: test.shares, Allocated: func(*gpu.GPU) gpu.Allocated { return test.allocated },
			})
			shapes, o := offered.Shapes(g), offered.Offers[0]
			if diff := cmp.Diff(test.want, kindsOf(shapes)); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if !o.Uncounted || !gpu.Coexist(shapes, g.Counters()) {
				t.Errorf("%+v: counters are needed, or not said to be dropped", o)
			}
			dropped := func(note string) bool { return note == errDropped.Error() }
			if got := [3]bool{dropped(o.NoPartitions), dropped(o.NoTimeSlice), dropped(o.NoMPS)}; got != test.why {
				t.Errorf("got partitions %q, time slices %q, MPS %q; want the counters named: %v", o.NoPartitions, o.NoTimeSlice, o.NoMPS, test.why)
			}
		})
	}
}
