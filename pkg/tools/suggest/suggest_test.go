// SPDX-License-Identifier: Apache-2.0

package suggest

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"cores", "memory", "nvlinkGroup", "mig-1g.10gb.cleave.dev", "mig-1g.20gb.cleave.dev", "shares"}
	for name, want := range map[string]string{
		"core": "cores", "mem": "memory", "Memory": "memory", "nvlinkgroup": "nvlinkGroup", "nvlink": "nvlinkGroup", "me": "",
		"mig-1g.10g.cleave.dev": "mig-1g.10gb.cleave.dev", "mig-1g.20g.cleave.dev": "mig-1g.20gb.cleave.dev", "bandwidth": "", "": "", "cores": "",
	} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestQuestion(t *testing.T) {
	for want, names := range map[string][]string{
		"": {""}, ": did you mean a?": {"", "a"}, ": did you mean a or b?": {"a", "b"},
	} {
		if got := Question(names...); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
