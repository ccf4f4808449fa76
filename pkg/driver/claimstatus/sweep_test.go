// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// A claim whose record was corrupt and is made again has its status again, once.
func TestWriter_RecordRemade(t *testing.T) {
	b := newBed(t)
	b.writes(t, recordOf(records.Device{}))
	b.start(t)
	b.set(nil) // it was set aside
	b.Sweep(t.Context())
	b.settle(t)
	if got := b.written(t); len(got) > 0 {
		t.Fatalf("status %v of a claim without a record", got)
	}
	b.set(recordOf(records.Device{})) // Reconcile does not call Prepare
	b.client.ClearActions()
	for range 2 {
		b.Sweep(t.Context())
		b.settle(t)
	}
	if got := b.written(t); len(got) != 1 || patches(b.client) != 1 {
		t.Errorf("status %v after %d writes, want that of one device after one", got, patches(b.client))
	}
}

// After a start, the first look may come before Restore: a status that is right is not written again, which would change its times.
func TestWriter_SweepBeforeRestore(t *testing.T) {
	b := newBed(t)
	b.writes(t, recordOf(records.Device{}))
	b.client.ClearActions()
	b.start(t)
	b.Inventory = func() *gpu.Node { return nil } // the driver is not found yet
	b.Sweep(t.Context())
	b.settle(t)
	b.Inventory = inventory
	b.Sweep(t.Context())
	b.settle(t)
	if n := patches(b.client); n != 0 {
		t.Errorf("%d writes of a status that is right, want none", n)
	}
}
