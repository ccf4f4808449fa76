// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

func TestUnprepare(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1, 2))
	mustUnprepare(t, b.Preparer, claimOn("a", 1, 2))
	mustUnprepare(t, b.Preparer, claimOn("a", 1, 2))
	wantDisk(t, b)
	mustPrepare(t, b.Preparer, claimOn("b", 1))
	mustPrepare(t, b.Preparer, claimOn("c", 2))
	mustUnprepare(t, b.Preparer, claimOn("a", 1, 2))
	wantDisk(t, b, line("b", 1), line("c", 2))
}

func TestUnprepare_InvalidUID(t *testing.T) {
	b := newBed(t)
	wantError(t, b.Unprepare(t.Context(), records.Claim{UID: "../../etc/passwd"}), "../../etc/passwd")
}

func TestUnprepare_RecordCannotBeRemoved(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	b.disk.fail = failOp("Remove", syscall.EROFS)
	if err := b.Unprepare(t.Context(), refOf(claimOn("a"))); !errors.Is(err, syscall.EROFS) {
		t.Fatalf("got %v, want %v", err, syscall.EROFS)
	}
	wantRefused(t, b.Preparer, claimOn("b", 1), "ns/claim-a (a)")
	b.disk.fail = nil
	mustUnprepare(t, b.Preparer, claimOn("a", 1))
	mustPrepare(t, b.Preparer, claimOn("b", 1))
}

// The kubelet unprepares a claim while the API server still has it as reserved for the pod that ends. A claim that was
// unprepared must not come back to life then: nobody would unprepare it again, and its GPU is refused to the next claim.
func TestReconcile_UnpreparedMeanwhile(t *testing.T) {
	tests := map[string]func(t *testing.T, b *bed){
		"found by Unprepare": func(t *testing.T, b *bed) {
			spoil(t, b.dir, "a")
			mustUnprepare(t, b.Preparer, claimOn("a", 1))
		},
		"found by Load": func(t *testing.T, b *bed) {
			spoil(t, b.dir, "a")
			b.load()
			mustUnprepare(t, b.Preparer, claimOn("a", 1))
		},
	}
	for name, arrange := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			arrange(t, b)
			mustUnprepare(t, b.Preparer, claimOn("a", 1))
			if len(b.notes) != 1 {
				t.Errorf("got notes %q, want one", b.notes)
			}
			b.Reconcile(t.Context(), &fakeAPI{claims: claimList(claimOn("a", 1))})
			wantDisk(t, b)
			mustPrepare(t, b.Preparer, claimOn("b", 1))
		})
	}
}

// A claim has a record, and one that was corrupt before is still to be created again, which the API server knows nothing of: the end of
// its processes is waited for all the same.
func TestUnprepare_RecordedAndCorrupt(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("a", 1))
	b.processes, b.api = &podProcesses{pids: map[types.UID][]int{"pod-uid": {4711}}}, &fakeAPI{}
	b.Ledger.corrupt.add("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the kubelet has given up waiting
	wantError(t, b.Unprepare(ctx, refOf(claimOn("a", 1))), "still holds GPUs")
	if b.Ledger.Record("a") == nil {
		t.Error("the record is gone though a process of the claim's pod runs")
	}
}
