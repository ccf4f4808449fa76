// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// A driver may create fewer partitions than it says fit: a device whose place it refuses is set aside, until a partition is gone.
func TestPrepare_PlaceRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSimBed(t, "hgx-h100", func(node *sim.Node) { must(t, node.Driver().SetQuirk(sim.QuirkFewerInstances, true)) })
		for i, uid := range []types.UID{"a", "b", "c"} {
			b.prepare(uid, b.name(0, 19, i))
		}
		changes := 0
		b.Ledger.changed = func() { changes++ }
		refused := func() error {
			_, err := b.Prepare(t.Context(), deviceClaim("d", b.name(0, 19, 5)))
			return err
		}
		wantError(t, refused(), "INSUFFICIENT_RESOURCES", "though nothing is in its place", "delete the pod")
		var free []string
		for i := 3; i < 7; i++ {
			free = append(free, b.name(0, 19, i))
		}
		equal(t, "devices set aside", free, b.Partitions.Occupied())
		if changes == 0 {
			t.Error("no change was reported: the device would not be tainted")
		}
		b.prepare("other", b.name(1, 19, 5)) // of another GPU
		wantError(t, refused(), "though nothing is in its place")
		b.unprepare("a")
		equal(t, "devices set aside once a partition is gone", []string(nil), b.Partitions.Occupied())
		must(t, refused())
		b.unprepare("d")

		b.prepare("a", b.name(0, 19, 0))
		wantError(t, refused(), "though nothing is in its place")
		time.Sleep(refusedFor) //nolint:forbidigo // in a bubble
		equal(t, "devices set aside long after", []string(nil), b.Partitions.Occupied())
		wantError(t, refused(), "though nothing is in its place")
		must(t, b.node.Driver().SetQuirk(sim.QuirkFewerInstances, false))
		must(t, refused())
		b.unprepare("d")
		equal(t, "devices set aside after a success", []string(nil), b.Partitions.Occupied())
	})
}

// So it is where the claim asks for several, whose partitions go when one is refused.
func TestPrepare_PlaceRefusedOfSeveral(t *testing.T) {
	b := newSimBed(t, "hgx-h100", func(node *sim.Node) { must(t, node.Driver().SetQuirk(sim.QuirkFewerInstances, true)) })
	b.prepare("a", b.name(0, 19, 0))
	b.prepare("b", b.name(0, 19, 1))
	_, err := b.Prepare(t.Context(), deviceClaim("both", b.name(0, 19, 2), b.name(0, 19, 3)))
	wantError(t, err, "though nothing is in its place")
	equal(t, "devices set aside", []string{b.name(0, 19, 2), b.name(0, 19, 3)}, b.Partitions.Occupied())
	b.unprepare("a")
	equal(t, "devices set aside once a partition is gone", []string(nil), b.Partitions.Occupied())
	// What fits no GPU keeps nobody else from one.
	var all []string
	for i := range 4 {
		all = append(all, b.name(1, 19, i))
	}
	_, err = b.Prepare(t.Context(), deviceClaim("four", all...))
	wantError(t, err, "though nothing is in its place")
	equal(t, "devices set aside of an empty GPU", all, b.Partitions.Occupied())
}

// What lies in the place of a device explains the refusal.
func TestPrepare_PlaceTaken(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	occupy(t, b.node, 0, 9, 4, 4)
	_, err := b.Prepare(t.Context(), deviceClaim("a", b.name(0, 19, 5)))
	wantError(t, err, "INSUFFICIENT_RESOURCES")
	b.want(list("0 9@4"), nil, nil)
	must(t, b.node.Driver().SetQuirk(sim.QuirkFewerInstances, true))
	if len(b.Partitions.refused.byGPU) > 0 {
		t.Errorf("refused are %v, want none", b.Partitions.refused.byGPU)
	}
	b.Partitions.FindUnmanaged(t.Context())
	if occupied := b.Partitions.Occupied(); slices.Contains(occupied, b.name(0, 19, 0)) {
		t.Errorf("occupied %v, want those beside the partition left out", occupied)
	}
}
