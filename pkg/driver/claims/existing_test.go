// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// In mode existing, an unmanaged partition is allocated as it is, and outlives the claim.
func TestPrepare_ExistingPartition(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	gi := occupy(t, b.node, 0, 19, 6, 1)
	device := b.name(0, 19, 6)
	b.offer(0, &policy.PartitionOffer{Mode: policy.Existing, Places: []gpu.Place{{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}}})

	// A GPU instance without a compute instance is of no use to anybody.
	compute, err := gi.ComputeInstanceByID(0)
	must(t, err)
	must(t, compute.Destroy())
	b.Partitions.FindUnmanaged(t.Context())
	if got := b.Partitions.Existing(); len(got) != 0 || !slices.Contains(b.Partitions.Occupied(), device) {
		t.Errorf("half made: got %v offered, want none and %s occupied", got, device)
	}
	if _, err := gi.CreateComputeInstance(0); err != nil {
		t.Fatal(err)
	}
	b.Partitions.FindUnmanaged(t.Context())
	offered := b.Partitions.Existing()
	if len(offered) != 1 || offered[0].Device != device || offered[0].UUID == "" {
		t.Fatalf("got %v offered, want %s with its UUID", offered, device)
	}
	if slices.Contains(b.Partitions.Occupied(), device) || !slices.Contains(b.Partitions.Occupied(), b.name(0)) {
		t.Errorf("got occupied devices %v, want the whole GPU among them and %s not", b.Partitions.Occupied(), device)
	}

	got := b.prepare("a", device)
	equal(t, "UUID", offered[0].UUID, got[0].Partition.UUID)
	if b.tryPrepare("b", device) == nil {
		t.Error("a second claim got the same partition")
	}
	b.Recover(t.Context())
	b.want(list("0 19@6"), list("a"), list("a"))
	b.unprepare("a")
	b.want(list("0 19@6"), nil, nil)
	b.prepare("b", device)
	b.unprepare("b")
	b.want(list("0 19@6"), nil, nil)
}
