// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEvents(t *testing.T) {
	const constants = "const (\n\treasonA = \"A\" // of a\n\treasonB = \"B\" // of b\n)\n"
	for name, tt := range map[string]struct{ source, want, err string }{
		"report":       {constants + `func f() { p.report(Report{Log: "x", Warning: true, Reason: reasonA}) }`, "| `A` | Warning | node | of a |\n", ""},
		"its field":    {constants + `func f(r Report) { r.Log, r.Reason = "x", reasonA }`, "| `A` | Normal | node | of a |\n", ""},
		"with warning": {constants + `func f(r Report) { r.Warning, r.Reason = true, reasonA }`, "| `A` | Warning | node | of a |\n", ""},
		"passed on":    {constants + `func f(r Report) { e.Note(r.Reason, r.Message); e.Warn(reasonB, "x") }`, "| `B` | Warning | node | of b |\n", ""},
		"claim and node": {
			constants + `func f() { e.WarnClaim(c, reasonA, "x"); e.Warn(reasonA, "y") }`, "| `A` | Warning | claim, node | of a |\n", "",
		},
		"queued": {
			constants + `func f() { w := warning{reason: reasonA}; w.reason = other.reasonB; q(warning{reason: reasonA, note: true}) }`,
			"| `A` | Warning, Normal | claim, pods | of a |\n| `B` | Warning | claim, pods | of b |\n", "",
		},
		"variable": {
			constants + `func f() { reason := reasonA; if x { reason = reasonB }; e.Note(reason, "x") }`,
			"| `A` | Normal | node | of a |\n| `B` | Normal | node | of b |\n", "",
		},
		"once":               {constants + `func f() { cluster.WarnOnce(ctx, c, d, daemonSet, reasonA, "x") }`, "| `A` | Warning | daemonSet | of a |\n", ""},
		"no constant":        {constants + `func f() { e.Warn("A", "x") }`, "", "f writes an Event whose reason is no constant"},
		"unknown variable":   {constants + `func f(reason string) { e.Warn(reason, "x") }`, "", "f writes an Event, and mentions no constant"},
		"without a comment":  {"const reasonA = \"A\"\nfunc f() { e.Warn(reasonA, \"x\") }", "", "reasonA has no comment"},
		"the same name":      {constants + "const reasonA = \"C\" // of c\n" + `func f() { e.Warn(reasonA, "x") }`, "", "two constants are called reasonA"},
		"no Events":          {constants + `func f() { log(reasonA) }`, "", "the plugin has no Events"},
		"another's warnings": {constants + `func f() { e.Note(reasonA, "x"); log.Warn("x") }`, "| `A` | Normal | node | of a |\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, eventDirs[0])
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a\n"+tt.source), 0o644); err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			err := events(&b, root)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %s", err, tt.err)
				}
				return
			}
			_, got, _ := strings.Cut(b.String(), "| --- | --- | --- | --- |\n")
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
