// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
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
