// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
)

// Whoever creates a pod names its owner, which neither acts on a terminal nor forges lines and columns.
func TestAdvice_PrintHostileText(t *testing.T) {
	const hostile = "\x1b[2J\nforged\tcolumn"
	a := &Advice{
		Steps:    []Step{{Pods: []Move{{Namespace: "team", Pod: "a", Controller: "Kind/name" + hostile}}}},
		Kept:     []Kept{{Namespace: "team", Pod: "b", Reason: UnknownController, Message: "of Kind" + hostile}},
		Problems: []string{hostile}, Notes: []string{hostile},
	}
	var b bytes.Buffer
	if err := a.Print(&b, true); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "forged") || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("got the line %q", line)
		}
	}
}
