// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
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

// Every list has an entry, and keys are keys.
func TestReference_Lists(t *testing.T) {
	text, err := generate("../..")
	if err != nil {
		t.Fatal(err)
	}
	section := ""
	found := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		key, ok := strings.CutPrefix(line, "| `")
		if key, _, _ = strings.Cut(key, "`"); !ok {
			continue
		}
		found[key] = true
		if (section == "Labels of nodes" || section == "Taints of devices") && !strings.HasPrefix(key, v1alpha1.Group+"/") {
			t.Errorf("%s: %s is no key", section, key)
		}
	}
	if !found[v1alpha1.AllocatedTwiceTaint] {
		t.Errorf("there is no %s", v1alpha1.AllocatedTwiceTaint)
	}
	if _, empty, ok := strings.Cut(string(text), "One of:\n\n\n"); ok {
		t.Errorf("an empty list before:\n%.60s", empty)
	}
}
