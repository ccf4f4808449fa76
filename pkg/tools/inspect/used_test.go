// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What claims use is beside them, and nowhere where the plugin does not say it.
func TestPrint_Used(t *testing.T) {
	m := busy(t)
	column := func() map[string]string {
		t.Helper()
		used := map[string]string{}
		for line := range strings.Lines(text(t, m.view(), Options{Width: 200})) {
			for _, claim := range []string{"ml/llm-7b-x5k2p", "dev/notebook-1", "dev/small", "ml/train", "dev/lost"} {
				if _, rest, ok := strings.Cut(line, "  "+claim+"  "); ok {
					first, _, _ := strings.Cut(strings.TrimSpace(rest), "  ")
					used[claim] = first
				}
			}
		}
		return used
	}
	if before := text(t, m.view(), Options{Width: 200}); strings.Contains(before, "USED") {
		t.Errorf("nothing is known, and there is a column for it:\n%s", before)
	}
	memory, busy, idle := int64(6<<30), .4, .001
	since := time.Date(2026, 8, 1, 14, 5, 0, 0, time.UTC)
	m.Used = map[UsedKey]Used{
		{"ml/llm-7b-x5k2p", m.Records[0].Devices[0].Device}: {MemoryBytes: &memory, SMActive: &busy, Source: "gpm"},
		{"ml/train", m.gpu(6).PCI.DeviceName()}:             {SMActive: &idle, LastActive: &since},
		{"dev/notebook-1", "another device"}:                {SMActive: &busy},
	}
	got := column()
	for claim, want := range map[string]string{"ml/llm-7b-x5k2p": "6144 MiB, SM 40%", "dev/small": "-", "dev/notebook-1": "-"} {
		if got[claim] != want {
			t.Errorf("%s uses %q, want %q", claim, got[claim], want)
		}
	}
	whole := ""
	for _, g := range m.view().GPUs {
		for _, s := range g.Shapes {
			for _, c := range s.Claims {
				if c.Claim == "ml/train" && c.Used != nil {
					whole += c.Used.String()
				}
				if c.AdminAccess && c.Used != nil {
					t.Errorf("%s only looks on, and uses %s", c.Claim, c.Used)
				}
			}
		}
	}
	if diff := cmp.Diff("idle since 2026-08-01 14:05 UTC", whole); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
