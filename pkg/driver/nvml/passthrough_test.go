// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// "Starting with the Hopper generation of GPUs, enabling MIG mode no longer requires a GPU reset" (MIG user guide, Getting Started): a
// guest that cannot reset its GPU changes the mode all the same.
func TestDiscover_PassThrough(t *testing.T) {
	for model, needsReset := range map[string]bool{"hgx-h100": false, "dgx-a100": true} {
		b := newBed(t, model, sim.WithPassThrough())
		g := b.gpu(0)
		if g.Virtualization != gpu.PassThrough || g.MIG.NeedsReset != needsReset || len(g.PartitionShapes()) > 0 == needsReset {
			t.Errorf("%s passed through: virtualization %d, needs a reset %t, %d partitions; want needs a reset %t", model,
				g.Virtualization, g.MIG.NeedsReset, len(g.PartitionShapes()), needsReset)
		}
	}
}

func TestSetMIG_GuestNeedsResetAfterAll(t *testing.T) {
	b := newBed(t, "hgx-h100", sim.WithPassThrough())
	b.enable() // works as a rule
	pci := b.gpu(0).PCI
	must(t, b.SetMIG(t.Context(), pci, false))
	must(t, b.node.Driver().SetQuirk(sim.QuirkVMNeedsReset, true))
	mustFail(t, b.SetMIG(t.Context(), pci, true), gpu.ErrResetRequired)
	if st := b.status(); st.MIG || st.MIGPending {
		t.Errorf("mode %t, pending mode %t, want neither", st.MIG, st.MIGPending)
	}
	changed, err := b.rediscover()
	if err != nil || !changed {
		t.Errorf("Rediscover: changed %t, %v; want a change", changed, err)
	}
	for range 2 { // the mark outlives later reads
		if g := b.gpu(0); !g.MIG.NeedsReset || g.MIG.Enabled || len(g.PartitionShapes()) > 0 || !g.CanBeWhole() {
			t.Errorf("needs a reset %t, %d partitions; want the whole GPU alone", g.MIG.NeedsReset, len(g.PartitionShapes()))
		}
		must(t, b.Refresh(t.Context()))
		must(t, b.Release(t.Context(), pci))
		must(t, b.Retake(t.Context(), pci))
	}
	if g := b.Node().GPUs[1]; g.MIG.NeedsReset {
		t.Error("another GPU is marked, too")
	}
}

// A board on bare metal that has failed ("The GPU requires a reset before it can be used again", nvml.h), and was reset since,
// changes its MIG mode without a reset as before.
func TestSetMIG_ResetRequiredOnBareMetal(t *testing.T) {
	for _, call := range []string{"nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode"} {
		b := newBed(t, "hgx-h100")
		must(t, b.node.Faults().FailNth(call, 1, sim.CodeResetRequired))
		mustFail(t, b.SetMIG(t.Context(), b.gpu(0).PCI, true), gpu.ErrResetRequired)
		must(t, b.node.Faults().Clear(-1))
		if _, err := b.rediscover(); err != nil {
			t.Fatal(err)
		}
		if g := b.gpu(0); g.MIG.NeedsReset || len(g.PartitionShapes()) == 0 {
			t.Errorf("%s: needs a reset %t, %d partitions", call, g.MIG.NeedsReset, len(g.PartitionShapes()))
		}
	}
}
