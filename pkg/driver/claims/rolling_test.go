// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"syscall"
	"testing"
)

// Two plugin processes serve one node concurrently during a rolling update.

// twoBeds are an old and a new plugin process over one node.
func twoBeds(t *testing.T) (older, newer *bed) {
	t.Helper()
	older = newBed(t)
	newer = older.another().start()
	return older, newer
}

func TestTwoProcesses_ClaimOfOther(t *testing.T) {
	older, newer := twoBeds(t)
	mustPrepare(t, older.Preparer, claimOn("a", 1))
	wantRefused(t, newer.Preparer, claimOn("b", 1), "ns/claim-a (a)")
	mustPrepare(t, newer.Preparer, claimOn("a", 1)) // the kubelet asks the new one again
	mustUnprepare(t, newer.Preparer, claimOn("a", 1))
	mustPrepare(t, older.Preparer, claimOn("b", 1))
	wantRefused(t, newer.Preparer, claimOn("a", 1), "ns/claim-b (b)")
	wantDisk(t, newer, line("b", 1))
}

// Reading all records costs more the more claims there are: it is done only where another process may have changed
// what is allocated of a GPU, which is once per GPU and change of process.
func TestTwoProcesses_RecordsListed(t *testing.T) {
	older, newer := twoBeds(t)
	lists := 0
	count := func(op, _ string) error {
		if op == "ReadDir" {
			lists++
		}
		return nil
	}
	older.disk.fail, newer.disk.fail = count, count
	var got []bool
	for _, step := range []struct {
		by   *bed
		gpus []int
	}{
		{older, []int{0}},    // nobody knows what was before
		{older, []int{0}},    // only itself
		{newer, []int{0}},    // older
		{newer, []int{0}},    // only itself
		{older, []int{0}},    // newer
		{older, []int{1}},    // another GPU, first time
		{newer, []int{2}},    // another GPU, first time
		{older, []int{0, 1}}, // only itself on both
		{older, []int{0, 2}}, // newer on GPU 2
	} {
		before := lists
		mustPrepare(t, step.by.Preparer, claimOn("a", step.gpus...))
		got = append(got, lists > before)
		mustUnprepare(t, step.by.Preparer, claimOn("a", step.gpus...))
	}
	equal(t, "records were listed", []bool{true, false, true, false, true, true, true, false, true}, got)
}

func TestTwoProcesses_WaitForLock(t *testing.T) {
	older, newer := twoBeds(t)
	entered, proceed := older.blockOn(1)
	slow := prepareLater(t.Context(), older.Preparer, claimOn("slow", 1))
	<-entered
	mustPrepare(t, newer.Preparer, claimOn("b", 2)) // another GPU: does not wait
	if _, err := newer.Prepare(endsAfter(t.Context(), 1), claimOn("a", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	close(proceed)
	if err := <-slow; err != nil {
		t.Fatalf("the slow claim: %v", err)
	}
	wantRefused(t, newer.Preparer, claimOn("a", 1), "ns/claim-slow (slow)")
}

// A process that gives up waiting for the second of two locks has marked the first as seen.
func TestTwoProcesses_PrepareGaveUp(t *testing.T) {
	older, newer := twoBeds(t)
	mustPrepare(t, older.Preparer, claimOn("probe", 0, 1)) // older knows both locks
	mustUnprepare(t, older.Preparer, claimOn("probe", 0, 1))
	mustPrepare(t, newer.Preparer, claimOn("a", 0))

	blocker := mustAcquire(t, newer.Ledger.locks, gpuName(1))
	if _, err := older.Prepare(endsAfter(t.Context(), 2), claimOn("b", 0, 1)); err == nil {
		t.Fatal("Prepare: want an error, the lock is held")
	}
	blocker.Release()
	wantRefused(t, older.Preparer, claimOn("c", 0), "ns/claim-a (a)")
	wantDisk(t, older, line("a", 0))
}

// A process that cannot read the records has marked the lock as seen.
func TestTwoProcesses_ResyncFailed(t *testing.T) {
	for _, op := range []string{"ReadDir", "ReadFile"} {
		t.Run(op, func(t *testing.T) {
			older, newer := twoBeds(t)
			mustPrepare(t, newer.Preparer, claimOn("a", 0))
			older.disk.fail = failOp(op, syscall.EIO)
			wantRefused(t, older.Preparer, claimOn("b", 0))
			older.disk.fail = nil
			wantRefused(t, older.Preparer, claimOn("c", 0), "ns/claim-a (a)")
			wantDisk(t, older, line("a", 0))
		})
	}
}

// A record on a bad sector is known from before: claims of others, on any GPU, are served all the same.
func TestTwoProcesses_RecordUnreadable(t *testing.T) {
	older, newer := twoBeds(t)
	mustPrepare(t, older.Preparer, claimOn("a", 0))
	mustPrepare(t, newer.Preparer, claimOn("b", 1))
	older.disk.fail = failAt("ReadFile", "/a.json", syscall.EIO)
	wantRefused(t, older.Preparer, claimOn("c", 1), "ns/claim-b (b)")
	mustUnprepare(t, newer.Preparer, claimOn("b", 1))
	mustPrepare(t, older.Preparer, claimOn("c", 1))
	mustPrepare(t, newer.Preparer, claimOn("d", 2))
	mustUnprepare(t, newer.Preparer, claimOn("d", 2))
	mustUnprepare(t, older.Preparer, claimOn("a", 0))
	wantDisk(t, newer, line("c", 1))
}

// moved is a claim that the older process prepared on GPU 0 and that the newer one unprepared and prepared on GPU 1,
// as its pod ended and the claim was allocated anew.
func moved(t *testing.T) (older, newer *bed) {
	t.Helper()
	older, newer = twoBeds(t)
	mustPrepare(t, older.Preparer, claimOn("a", 0))
	mustUnprepare(t, newer.Preparer, claimOn("a", 0))
	mustPrepare(t, newer.Preparer, claimOn("a", 1))
	return older, newer
}

func TestTwoProcesses_ReconcileMovedClaim(t *testing.T) {
	older, _ := moved(t)
	older.Reconcile(t.Context(), &fakeAPI{claims: claimList(claimOn("a", 1))})
	wantDisk(t, older, line("a", 1))
}

func TestTwoProcesses_UnprepareMovedClaim(t *testing.T) {
	older, newer := moved(t)
	mustUnprepare(t, older.Preparer, claimOn("a", 1))
	wantDisk(t, older)
	mustPrepare(t, newer.Preparer, claimOn("b", 1))
}

// The claim was allocated anew without an Unprepare in between: its pod was deleted by force.
func TestTwoProcesses_AllocatedAnew(t *testing.T) {
	older, newer := twoBeds(t)
	mustPrepare(t, older.Preparer, claimOn("a", 0))
	mustPrepare(t, newer.Preparer, claimOn("a", 1))
	mustPrepare(t, older.Preparer, claimOn("b", 0)) // the claim has moved
	older.Reconcile(t.Context(), &fakeAPI{claims: claimList(claimOn("a", 1), claimOn("b", 0))})
	wantDisk(t, older, line("a", 1), line("b", 0))
	wantRefused(t, older.Preparer, claimOn("c", 1), "ns/claim-a (a)")
}

func TestTwoProcesses_CorruptRecord(t *testing.T) {
	older, newer := twoBeds(t)
	mustPrepare(t, newer.Preparer, claimOn("bad", 0))
	mustPrepare(t, newer.Preparer, claimOn("good", 1))
	spoil(t, older.dir, "bad")
	mustPrepare(t, older.Preparer, claimOn("b", 2))
	wantRefused(t, older.Preparer, claimOn("c", 1), "ns/claim-good (good)")
}

func TestTwoProcesses_KnownClaimCorrupt(t *testing.T) {
	older, newer := twoBeds(t)
	mustPrepare(t, older.Preparer, claimOn("a", 0))
	mustPrepare(t, newer.Preparer, claimOf("watch", adminResult("all", 0))) // so that the lock was another's
	spoil(t, older.dir, "a")
	wantRefused(t, older.Preparer, claimOn("b", 0), "ns/claim-a (a)")
}

func TestTwoProcesses_RestartWhilePreparing(t *testing.T) {
	older := newBed(t)
	entered, proceed := older.blockOn(0)
	slow := prepareLater(t.Context(), older.Preparer, claimOn("slow", 0))
	<-entered
	newer := older.another().start() // before the record is written
	fast := prepareLater(t.Context(), newer.Preparer, claimOn("fast", 0))
	proceed <- struct{}{}
	errs := []error{<-slow, <-fast}
	if errs[0] != nil || errs[1] == nil {
		t.Errorf("got errors %v, want only the second claim refused", errs)
	}
	wantDisk(t, newer, line("slow", 0))
}
