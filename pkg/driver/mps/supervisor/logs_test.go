// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An error quotes the last line of each log, and not all of a long one: it becomes an Event.
func TestTailOf(t *testing.T) {
	long := strings.Repeat("x", quoteRunes+1)
	for name, tt := range map[string]struct {
		logs map[string]string
		want string
	}{
		"no logs":   {nil, ""},
		"empty":     {map[string]string{"control.log": "\n \n"}, ""},
		"last line": {map[string]string{"control.log": "a\nb\n\n"}, "; control.log ends: b"},
		"each": {map[string]string{"server.log": "s", "control.log": "c", outputFile: "o\x1b[1m"},
			"; control.log ends: c; server.log ends: s; daemon.log ends: o[1m"},
		"long": {map[string]string{"server.log": long}, "; server.log ends: " + long[:quoteRunes-1] + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range tt.logs {
				must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			if got := tailOf(t.Context(), "gpu-0", dir); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
