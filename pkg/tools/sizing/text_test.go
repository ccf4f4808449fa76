// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
)

// Whoever creates a pod names its owner, which neither acts on a terminal nor forges lines and columns.
func TestAdvice_PrintHostileText(t *testing.T) {
	a := &Advice{Workloads: []Workload{{Namespace: "team", Workload: "Kind\x1b[2J/name\nPROBLEM: forged\tcolumn"}}, Problems: []string{"pod\x1b[2J"}}
	var b bytes.Buffer
	if err := a.Print(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.Contains(line, "forged") != strings.HasPrefix(line, "team ") || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("got the line %q", line)
		}
	}
}
