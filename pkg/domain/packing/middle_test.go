// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMiddleOut(t *testing.T) {
	tests := [][]int{{}, {0}, {0, 1}, {1, 2, 0}, {1, 2, 0, 3}, {2, 3, 1, 4, 0}}
	for n, want := range tests {
		if diff := cmp.Diff(want, middleOut(n)); diff != "" {
			t.Errorf("%d (-want +got):\n%s", n, diff)
		}
	}
	if diff := cmp.Diff([]int{3, 4, 2, 5, 1, 6, 0, 7}, middleOut(8)); diff != "" {
		t.Errorf("8 (-want +got):\n%s", diff)
	}
	for n := range 17 {
		got := middleOut(n)
		seen, last := map[int]bool{}, 0
		for _, i := range got {
			away := max(2*i-(n-1), (n-1)-2*i) // from the middle, in halves
			if i < 0 || i >= n || seen[i] || away < last {
				t.Errorf("%d: %d comes at a wrong place of %v, or again", n, i, got)
			}
			seen[i], last = true, away
		}
		if len(got) != n {
			t.Errorf("%d: got %v", n, got)
		}
	}
}
