// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// A driver that lists partitions in MIG mode only: a GPU is whole until its mode is on, and has partitions then.
func TestDiscover_ListsInMIGModeOnly(t *testing.T) {
	node, err := sim.New("hgx-h100")
	if err == nil {
		err = node.Driver().SetQuirk(sim.QuirkListsInMIGMode, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	session, err := simulated.OpenNode(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Session: session, t: t, node: node}
	for _, inMIGMode := range []bool{false, true} {
		if inMIGMode {
			if err := b.SetMIG(t.Context(), b.gpu0().PCI, true); err != nil {
				t.Fatal(err)
			}
			if err := b.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if g := b.gpu0(); !g.MIG.Capable || !g.CanBeWhole() || len(g.PartitionShapes()) > 0 != inMIGMode {
			t.Errorf("in MIG mode %t: capable %t, whole %t, %d partitions", inMIGMode, g.MIG.Capable, g.CanBeWhole(), len(g.PartitionShapes()))
		}
	}
}

// A driver from before profiles with all or none of the media engines: the board has the others, and the counters that they need.
func TestDiscover_FewerProfiles(t *testing.T) {
	for _, fewer := range []bool{false, true} {
		node, err := sim.New("rtx-pro-6000")
		if err == nil {
			err = node.Driver().SetQuirk(sim.QuirkFewerProfiles, fewer)
		}
		if err != nil {
			t.Fatal(err)
		}
		session, err := simulated.OpenNode(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		g := session.Node().GPUs[0]
		want, counters := "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me 2g.48gb 2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me 4g.96gb 4g.96gb+gfx",
			"slice-0 slice-3 slice-6 slice-9 jpeg-engines ofa-engines"
		if fewer {
			want, counters = "1g.24gb 1g.24gb+me 1g.24gb+gfx 2g.48gb 2g.48gb+gfx 4g.96gb 4g.96gb+gfx", "slice-0 slice-3 slice-6 slice-9 ofa-engines"
		}
		if got := strings.Join(g.MIG.Catalog(), " "); got != want || len(session.Node().Problems) > 0 {
			t.Errorf("fewer: %t: got %s, problems %v, want %s", fewer, got, session.Node().Problems, want)
		}
		var got []string
		for _, c := range g.Counters() {
			got = append(got, c.Name)
		}
		if !slices.Equal(got, strings.Fields(counters)) {
			t.Errorf("fewer: %t: got counters %v, want %s", fewer, got, counters)
		}
	}
}
