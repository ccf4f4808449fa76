// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"syscall"
	"testing"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// A preparation of two partitions fails at the second, which was never created, and the first cannot be destroyed at once. What an
// admin creates in the place of the second is the admin's.
func TestPrepare_NeverCreatedThenByHand(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newSimBed(t, "hgx-h100")
		_, err := b.node.Faults().Inject(sim.Fault{GPU: 1, Call: "nvmlDeviceCreateGpuInstanceWithPlacement", Code: sim.CodeUnknown})
		must(t, err)
		_, err = b.node.Faults().Inject(sim.Fault{GPU: 0, Call: "nvmlGpuInstanceDestroy", Code: sim.CodeUnknown})
		must(t, err)
		if err := b.tryPrepare("a", b.name(0, 19, 0), b.name(1, 14, 4)); err == nil {
			t.Fatal("Prepare said success")
		}
		for i := range 2 {
			must(t, b.node.Faults().Clear(i))
		}
		occupy(t, b.node, 1, 14, 4, 2)
		if restart {
			b = b.restart()
		}
		b.Recover(t.Context())
		b.want(list("1 14@4"), nil, nil)
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
		if err := b.tryPrepare("a", b.name(1, 14, 4)); err == nil {
			t.Fatal("Prepare said success")
		}
		for i := range 2 {
			must(t, b.node.Faults().Clear(i))
		}
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
	if err := b.Unprepare(t.Context(), refOf(deviceClaim("a"))); err == nil {
		t.Fatal("Unprepare said success")
	}
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
