// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"
	"testing/synctest"

	"github.com/cleave-dra/cleave/pkg/sim"
)

func TestPrepare_WholeGPUAfterMIGAwaitsFabric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "gb200-nvl72", func(n *sim.Node) {
			must(t, n.Driver().SetQuirk(sim.QuirkFabricAfterMIG, true))
		})
		b.prepare("a", b.name(0, 19, 6))
		b.unprepare("a")
		b.prepare("b", b.session.Node().GPUs[0].PCI.DeviceName())
		info, err := b.node.Device(0).Links().Fabric()
		if err != nil || info.State != sim.FabricCompleted {
			t.Errorf("Prepare succeeded while the fabric is in state %d (%v), want %d", info.State, err, sim.FabricCompleted)
		}
	})
}
