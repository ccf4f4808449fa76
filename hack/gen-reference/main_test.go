// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReference_UpToDate(t *testing.T) {
	want, err := generate("../..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the file is out of date: run \"make reference\" (-code +file):\n%s", diff)
	}
}

// A field, flag or key without a word about it is of no use to anybody.
func TestReference_EveryEntryExplained(t *testing.T) {
	text, err := generate("../..")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) > 3 && !strings.HasPrefix(cells[1], " --- ") && strings.TrimSpace(strings.ReplaceAll(cells[len(cells)-2], "-", "")) == "" {
			t.Errorf("no explanation: %s", line)
		}
	}
}
