// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUsage(t *testing.T) {
	t.Setenv("K8S_VERSION", "")
	for _, test := range []struct {
		args   []string
		status int
		stdout string
		stderr string
	}{
		{nil, 2, "", "no command; there are up, down"},
		{[]string{"-h"}, 0, "Usage: cluster COMMAND", ""},
		{[]string{"start"}, 2, "", `unknown command "start"`},
		{[]string{"up", "-h"}, 0, "-kubernetes-version", ""},
		{[]string{"up", "--speed"}, 2, "", "-speed"},
		{[]string{"up", "--nodes", "20"}, 2, "", "there can be 1 to 9"},
		{[]string{"up", "now"}, 2, "", `unexpected argument "now"`},
		{[]string{"up", "--kubernetes-version", "1.30"}, 2, "", "valid versions are 1.37.2, 1.36.4, 1.35.4, 1.34.4"},
		{[]string{"up", "--feature-gates", "A=yes"}, 2, "", `feature gate "A=yes"`},
		{[]string{"down", "--dir", "/"}, 2, "", "a directory of its own"},
		{[]string{"status", "--dir", "/var/lib/no-cluster"}, 1, "", "was it started?"},
		{[]string{"kubeconfig", "--dir", "/var/lib/no-cluster"}, 1, "", "was it started?"},
	} {
		var stdout, stderr strings.Builder
		status := exitStatus(run(t.Context(), test.args, &stdout), &stderr)
		if status != test.status {
			t.Errorf("%q: exit status %d, want %d", test.args, status, test.status)
		}
		for _, check := range []struct{ name, got, want string }{{"stdout", stdout.String(), test.stdout}, {"stderr", stderr.String(), test.stderr}} {
			if !strings.Contains(check.got, check.want) || (check.want == "" && check.got != "") {
				t.Errorf("%q: %s is %q, want %q in it", test.args, check.name, check.got, check.want)
			}
		}
	}
}

func TestParseGates(t *testing.T) {
	for list, want := range map[string]string{
		"":               "map[] <nil>",
		"A=true":         "map[A:true] <nil>",
		"A=true,B=false": "map[A:true B:false] <nil>",
		"=true":          `map[] read the feature gate "=true": write NAME=true or NAME=false`,
		"A":              `map[] read the feature gate "A": write NAME=true or NAME=false`,
	} {
		gates, err := parseGates(list)
		if diff := cmp.Diff(want, fmt.Sprint(gates, " ", err)); diff != "" {
			t.Errorf("parseGates(%q) (-want +got):\n%s", list, diff)
		}
	}
}
