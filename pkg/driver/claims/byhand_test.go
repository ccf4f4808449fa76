// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// A preparation of two partitions fails at the second, which was never created or stays half made, and one cannot be destroyed at
// once. What an admin creates in the place of the other is the admin's.
func TestPrepare_PartlyUndoneThenByHand(t *testing.T) {
	const destroy = "nvmlGpuInstanceDestroy"
	for name, tt := range map[string]struct {
		faults  []sim.Fault
		left    []string
		byHand  gpu.Place // on this GPU
		on      int
		outlast string
	}{
		"never created": {
			[]sim.Fault{{GPU: 1, Call: "nvmlDeviceCreateGpuInstanceWithPlacement"}, {GPU: 0, Call: destroy}},
			list("0 19@0 with 0 compute instances"), place(14, 4, 2), 1, "1 14@4",
		},
		"half made": {
			[]sim.Fault{{GPU: 1, Call: "nvmlGpuInstanceCreateComputeInstance"}, {GPU: 1, Call: destroy}},
			list("1 14@4 with 0 compute instances"), place(19, 0, 1), 0, "0 19@0",
		},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				b := newSimBed(t, "hgx-h100")
				for _, f := range tt.faults {
					f.Code = sim.CodeUnknown
					_, err := b.node.Faults().Inject(f)
					must(t, err)
				}
				wantError(t, b.tryPrepare("a", b.name(0, 19, 0), b.name(1, 14, 4)))
				b.want(tt.left, list("a"), nil)
				must(t, b.node.Faults().Clear(tt.on))
				occupy(t, b.node, tt.on, tt.byHand.ProfileID, tt.byHand.Placement.Start, tt.byHand.Placement.Size)
				if restart {
					b = b.restart()
				}
				b.readable()
				b.want(list(tt.outlast), nil, nil)
			})
		}
	}
}

// A claim that is allocated anew loses its earlier partition, and then its preparation fails. What an admin creates where the
// earlier partition was is the admin's.
func TestPrepare_AllocatedAnewThenByHand(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newSimBed(t, "hgx-h100")
		b.prepare("a", b.name(0, 19, 0))
		_, err := b.node.Faults().Inject(sim.Fault{GPU: 1, Call: "nvmlDeviceSetMigMode", Code: sim.CodeUnknown})
		must(t, err)
		wantError(t, b.tryPrepare("a", b.name(1, 14, 4)))
		must(t, b.node.Faults().Clear(-1))
		occupy(t, b.node, 0, 19, 0, 1)
		if restart {
			b = b.restart()
		}
		b.prepare("a", b.name(1, 14, 4))
		b.want(list("0 19@0", "1 14@4"), list("a"), list("a"))
	}
}

// A claim is released, and its record cannot be removed. What an admin creates in the place is the admin's.
func TestUnprepare_RecordStaysThenByHand(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 19, 0))
	b.disk.fail = failOp("Remove", syscall.EROFS)
	wantError(t, b.Unprepare(t.Context(), refOf(deviceClaim("a"))))
	occupy(t, b.node, 0, 19, 0, 1)
	b.disk.fail = nil
	must(t, b.Unprepare(t.Context(), refOf(deviceClaim("a"))))
	b.want(list("0 19@0"), nil, nil)
}

// A partition of a layout is destroyed, and that cannot be recorded. What an admin creates in its place is the admin's.
func TestLayout_DiskFullThenByHand(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.lay(cutInto(place(19, 6, 1), place(14, 4, 2)))
	b.disk.fail = failOp("WriteFile", syscall.ENOSPC)
	b.offer(0, cutInto(place(14, 4, 2)))
	if b.keep() == "" {
		t.Fatal("KeepLayouts said success")
	}
	b.want(list("0 14@4"), nil, nil)
	occupy(t, b.node, 0, 19, 6, 1)
	b.disk.fail = nil
	b.keep()
	b.want(list("0 14@4", "0 19@6"), nil, nil)
}

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
