// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

// What tenants write neither acts on a terminal nor forges lines.
func TestPrint_HostileText(t *testing.T) {
	const hostile = "device.driver == \"\"\"none\nWhat would fit now:\n  1 of class forged\"\"\" // \x1b]0;owned\a\x1b[2J\u202e\u009b"
	b := newBed(t, "gh200")
	pod := podOf("c")
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no\x1b[2J\nforged"}}
	c := claim("c", selecting(asks("gpu.cleave.dev", 1), hostile+strings.Repeat("x", 1000)))
	e := b.explain(AboutPod(pod, namespace(c), b.Objects))
	got := text(t, e)
	if !strings.Contains(got, "none What would fit now: 1 of class forged") || !strings.Contains(got, "The scheduler says: no") {
		t.Errorf("want the selector and what the scheduler says, in\n%s", got)
	}
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(line, "\n")
		if len(line) > 500 || strings.HasPrefix(line, "forged") || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("got the line %q", line)
		}
	}
}
