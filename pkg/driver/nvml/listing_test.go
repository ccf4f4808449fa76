// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// A driver that lists partitions in MIG mode only: a GPU is whole until its mode is on, and has partitions then.
func TestDiscover_ListsInMIGModeOnly(t *testing.T) {
	b := newBedAfter(t, "hgx-h100", quirk(sim.QuirkListsInMIGMode))
	for _, inMIGMode := range []bool{false, true} {
		if inMIGMode {
			b.enable()
			must(t, b.Refresh(t.Context()))
		}
		if g := b.gpu(0); !g.MIG.Capable || !g.CanBeWhole() || len(g.PartitionShapes()) > 0 != inMIGMode {
			t.Errorf("in MIG mode %t: capable %t, whole %t, %d partitions", inMIGMode, g.MIG.Capable, g.CanBeWhole(), len(g.PartitionShapes()))
		}
	}
}

// A driver from before profiles with all or none of the media engines: the board has the others, and the counters that they need.
func TestDiscover_FewerProfiles(t *testing.T) {
	for _, fewer := range []bool{false, true} {
		before := asItIs
		want, counters := "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me 2g.48gb 2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me 4g.96gb 4g.96gb+gfx",
			"slice-0 slice-3 slice-6 slice-9 jpeg-engines ofa-engines"
		if fewer {
			before = quirk(sim.QuirkFewerProfiles)
			want, counters = "1g.24gb 1g.24gb+me 1g.24gb+gfx 2g.48gb 2g.48gb+gfx 4g.96gb 4g.96gb+gfx", "slice-0 slice-3 slice-6 slice-9 ofa-engines"
		}
		b := newBedAfter(t, "rtx-pro-6000", before)
		if got := strings.Join(b.gpu(0).MIG.Catalog(), " "); got != want || len(b.Node().Problems) > 0 {
			t.Errorf("fewer: %t: got %s, problems %v, want %s", fewer, got, b.Node().Problems, want)
		}
		var got []string
		for _, c := range b.gpu(0).Counters() {
			got = append(got, c.Name)
		}
		if !slices.Equal(got, strings.Fields(counters)) {
			t.Errorf("fewer: %t: got counters %v, want %s", fewer, got, counters)
		}
	}
}
