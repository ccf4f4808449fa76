// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"strings"
	"testing"
)

func TestAdvise_Usage(t *testing.T) {
	for want, args := range map[string][]string{
		"--prometheus is not set":           {},
		"--since 30m0s is less than":        {"--prometheus", "http://p", "--since", "30m"},
		"--margin -1 is not in 0 to 10":     {"--prometheus", "http://p", "--margin", "-1"},
		"--margin NaN is not in 0 to 10":    {"--prometheus", "http://p", "--margin", "NaN"},
		"--seen 200h0m0s is not in 0 to":    {"--prometheus", "http://p", "--seen", "200h"},
		`--output "wide" is not one of tab`: {"--prometheus", "http://p", "-o", "wide"},
		"unexpected argument":               {"web"},
	} {
		cmd := newAdvise()
		cmd.SetArgs(append(args, "--kubeconfig", "/nonexistent"))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", args, err, want)
		}
	}
}
