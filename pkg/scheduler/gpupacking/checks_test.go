// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestChecks_InTurn: kube-scheduler tries all waiting pods again at once, every five minutes and in the same order. A check has
// room for one demand each time.
func TestChecks_InTurn(t *testing.T) {
	const flush = 5*time.Minute + 30*time.Second
	type burst struct {
		after time.Duration
		keys  string
	}
	every := func(after time.Duration, n int, keys string) (all []burst) {
		for range n {
			all = append(all, burst{after, keys})
		}
		return all
	}
	for name, tt := range map[string]struct {
		bursts []burst
		want   string // which of each are checked
	}{
		"all in turn":             {every(flush, 9, "a b c d"), "a b c d a b c d a"},
		"the other way round":     {append(every(flush, 2, "a b c"), every(flush, 4, "c b a")...), "a b c a b c"},
		"one more":                {append(every(flush, 3, "a b"), every(flush, 3, "a b new")...), "a b a b new a"},
		"others are gone":         {append(every(flush, 2, "a b c d"), every(flush, 3, "a")...), "a b - a a"},
		"one is tried more often": {append(every(flush, 1, "a b"), every(30*time.Second, 6, "a")...), "a - - - a - -"},
		"alone":                   {every(30*time.Second, 5, "a"), "a - a - a"},
	} {
		now := time.Unix(0, 0)
		c := checks{now: func() time.Time { return now }}
		var got []string
		for _, burst := range tt.bursts {
			now = now.Add(burst.after)
			checked := "-"
			for _, key := range strings.Fields(burst.keys) {
				now = now.Add(10 * time.Millisecond)
				if c.due(key) {
					checked = strings.TrimPrefix(fmt.Sprint(checked, key), "-")
				}
			}
			got = append(got, checked)
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: checked (-want +got):\n%s", name, diff)
		}
	}
}

// TestChecks_SlowBursts: also where trying all waiting pods again takes longer than the gap between two checks.
func TestChecks_SlowBursts(t *testing.T) {
	now := time.Unix(0, 0)
	c := checks{now: func() time.Time { return now }}
	checked := map[string]int{}
	for burst := range 20 {
		for _, d := range []struct {
			key   string
			after time.Duration
			since int
		}{{"a", 700 * time.Millisecond, 2}, {"b", 5100 * time.Millisecond, 4}, {"c", 5900 * time.Millisecond, 3}} {
			now = time.Unix(0, 0).Add(time.Duration(burst)*330*time.Second + d.after)
			if burst >= d.since && c.due(d.key) {
				checked[d.key]++
			}
		}
	}
	for _, key := range []string{"a", "b", "c"} {
		if checked[key] < 4 {
			t.Errorf("%s was checked %d times in 16 bursts, of three demands: %v", key, checked[key], checked)
		}
	}
}
