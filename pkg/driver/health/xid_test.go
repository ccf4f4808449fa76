// SPDX-License-Identifier: Apache-2.0

package health

import (
	"os"
	"strings"
	"testing"
)

func TestTable_Order(t *testing.T) {
	for i, x := range table {
		if x.First > x.Last || i > 0 && table[i-1].Last >= x.First || x.Class < Counted || x.Class > Lasting || x.What == "" {
			t.Errorf("entry %d: %+v", i, x)
		}
	}
	for class, list := range map[Class][]int{
		Counted: {13, 31, 43, 45, 68, 108, 109, 63, 152, 153, 154, 157, 174, 176},
		Passing: {92, 94, 144, 147, 149, 1000, 999, 0},
		Lasting: {46, 48, 64, 74, 79, 95, 119, 120, 140, 143, 148, 150, 166, 170, 171, 172, 173, 175},
	} {
		for _, n := range list {
			if got := find(n).Class; got != class {
				t.Errorf("XID %d is %s, want %s", n, got, class)
			}
		}
	}
}

// The table of XIDs is in docs/reference.md, which hack/gen-reference checks.
func TestDocs_HealthReasons(t *testing.T) {
	data, err := os.ReadFile("../../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{
		ReasonLost, ReasonReplaced, ReasonUnreachable, ReasonUnavailable, ReasonDoubleBitECC, ReasonNeedsReboot, ReasonNeedsBusReset,
		ReasonDrainAndReset, ReasonNeedsReset, ReasonDrainP2P, ReasonNeedsIMEX, ReasonFabric, ReasonFabricFailed, ReasonNeedsSomething,
	} {
		if !strings.Contains(string(data), "\n| `"+reason+"` |") {
			t.Errorf("the documentation does not say what to do about %s", reason)
		}
	}
}
