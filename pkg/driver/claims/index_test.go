// SPDX-License-Identifier: Apache-2.0

package claims

import "testing"

func TestOnAllocate(t *testing.T) {
	b, other := twoBeds(t)
	calls := 0
	b.Ledger.index.changed = func() { calls++ }
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"prepare", func() { mustPrepare(t, b.Preparer, claimOn("a", 1)) }, true},
		{"prepare again", func() { mustPrepare(t, b.Preparer, claimOn("a", 1)) }, false},
		{"prepare what another claim has", func() {
			wantRefused(t, b.Preparer, claimOn("b", 1), "allocated to")
		}, false},
		{"records are read that are the same", func() { must(t, b.Ledger.resync(t.Context(), "", []string{gpuName(1)})) }, false},
		{"unprepare", func() { mustUnprepare(t, b.Preparer, claimOn("a", 1)) }, true},
		{"unprepare again", func() { mustUnprepare(t, b.Preparer, claimOn("a", 1)) }, false},
		{"another process prepares", func() { mustPrepare(t, other.Preparer, claimOn("c", 2)) }, false},
		{"it is seen", func() { b.Partitions.FindUnmanaged(t.Context()); _, _ = b.Prepare(t.Context(), claimOn("d", 2)) }, true},
	} {
		calls = 0
		step.do()
		if (calls > 0) != step.want {
			t.Errorf("%s: called %d times, want it called: %t", step.name, calls, step.want)
		}
	}
}
