// SPDX-License-Identifier: Apache-2.0

package process

import "testing"

func TestOfStatus(t *testing.T) {
	const status = "Name:\tcleave\nVmRSS:\t   62500 kB\nRssAnon:\t   31250 kB\nRssFile:\t   31250 kB\nThreads:\t12\n"
	for name, want := range map[string]float64{"RssAnon": 32, "VmRSS": 64} {
		if got, err := ofStatus(status, name); err != nil || got != want {
			t.Errorf("%s: got %g MB, %v, want %g MB", name, got, err, want)
		}
	}
	for _, name := range []string{"Rss", "Threads", "Name"} {
		if got, err := ofStatus(status, name); err == nil {
			t.Errorf("%s: got %g MB, want an error", name, got)
		}
	}
}
