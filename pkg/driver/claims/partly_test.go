// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// If a claim is released only in part, what an admin creates in the place of a partition that is gone belongs to the admin,
// though it gets the same GPU instance ID and the same UUID.
func TestUnprepare_PartlyThenByHand(t *testing.T) {
	faults := map[string]struct {
		fault func(b *simBed) error
		// fails: the kubelet repeats Unprepare.
		fails bool
	}{
		"GPU lost": {fault: func(b *simBed) error { return b.node.Hardware().Lose(1) }},
		"GPU needs a reset": {fault: func(b *simBed) error {
			_, err := b.node.Faults().Inject(sim.Fault{GPU: 1, Call: "nvmlGpuInstanceDestroy", Code: sim.CodeResetRequired})
			return err
		}},
		"GPU lost, disk full": {fails: true, fault: func(b *simBed) error {
			b.disk.fail = failOp("WriteFile", syscall.ENOSPC)
			return b.node.Hardware().Lose(1)
		}},
		"partition in use": {fails: true, fault: func(b *simBed) error {
			d := b.Ledger.Record("a").Devices[1]
			return b.node.Clients().Add(1, sim.Client{PID: 4711, Name: "train", GPUInstance: d.Partition.GI, ComputeInstance: *d.Partition.CI})
		}},
	}
	for name, tt := range faults {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				b := newSimBed(t, "hgx-h100")
				b.prepare("a", b.name(0, 19, 0), b.name(1, 14, 4))
				must(t, tt.fault(b))
				if err := b.Unprepare(t.Context(), refOf(deviceClaim("a"))); (err != nil) != tt.fails {
					t.Fatalf("Unprepare: %v, want an error: %t", err, tt.fails)
				}
				occupy(t, b.node, 0, 19, 0, 1)
				b.disk.fail = nil
				if err := b.Unprepare(t.Context(), refOf(deviceClaim("a"))); err != nil && !tt.fails {
					t.Fatal(err)
				}
				if restart {
					b = b.restart()
				}
				b.Recover(t.Context())
				b.Reconcile(t.Context(), &fakeAPI{})
				if !slices.Contains(b.Partitions.Occupied(), b.name(0, 19, 0)) {
					t.Error("the place of the partition by hand is not occupied")
				}
				if name == "partition in use" {
					must(t, b.node.Clients().Remove(1, 4711))
				}
				b.readable()
				b.want(list("0 19@0"), nil, nil)
			})
		}
	}
}

// The same for a preparation that failed, and could be undone only in part.
func TestPrepare_PartlyUndoneThenByHand(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newSimBed(t, "hgx-h100")
		for _, call := range []string{"nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceDestroy"} {
			_, err := b.node.Faults().Inject(sim.Fault{GPU: 1, Call: call, Code: sim.CodeUnknown})
			must(t, err)
		}
		if err := b.tryPrepare("a", b.name(0, 19, 0), b.name(1, 14, 4)); err == nil {
			t.Fatal("Prepare said success")
		}
		b.want(list("1 14@4 with 0 compute instances"), list("a"), nil)
		occupy(t, b.node, 0, 19, 0, 1)
		if restart {
			b = b.restart()
		}
		b.readable()
		b.want(list("0 19@0"), nil, nil)
	}
}
