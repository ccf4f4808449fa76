// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGenerated_UpToDate(t *testing.T) {
	profiles, err := catalog()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]byte{
		"../../deployments/helm/cleave/files/mig-profiles.yaml": list(profiles),
		"../../pkg/tools/migrate/profiles.txt":                  nameList(profiles),
	} {
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is out of date: run \"make manifests\" (-catalog +file):\n%s", file, diff)
		}
	}
}

func TestProfiles_Order(t *testing.T) {
	profiles, err := catalog()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, p := range profiles {
		if seen[resourceName(p.name)] {
			t.Errorf("%s has two classes", p.name)
		}
		seen[resourceName(p.name)] = true
		if i > 0 && p.computeSlices < profiles[i-1].computeSlices {
			t.Errorf("%s comes after %s", p.name, profiles[i-1].name)
		}
	}
	// With all, none and graphics they are named as by NVIDIA's device plugin v0.20.0 (internal/rm/rm.go), which writes "." for "+".
	for _, name := range []string{"1g.10gb", "1g.10gb.me", "1g.6gb", "2g.12gb.me", "4g.96gb", "7g.186gb", "1g.24gb.gfx", "1g.24gb.me.all",
		"1g.24gb-me", "2g.48gb-me", "4g.96gb.gfx"} {
		if !seen[name] {
			t.Errorf("there is no class for %s", name)
		}
	}
}

// The chart's value that leaves classes out takes every profile that has one.
func TestValues_Disabled(t *testing.T) {
	data, err := os.ReadFile("../../deployments/helm/cleave/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties map[string]*schema
		Items      *schema
		Pattern    string
	}
	var values schema
	if err := json.Unmarshal(data, &values); err != nil {
		t.Fatal(err)
	}
	at := &values
	for _, name := range []string{"deviceClasses", "migProfiles", "disabled"} {
		if at = at.Properties[name]; at == nil {
			t.Fatalf("the schema has no %s", name)
		}
	}
	pattern := regexp.MustCompile(at.Items.Pattern)
	profiles, err := catalog()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range profiles {
		if !pattern.MatchString(p.name) {
			t.Errorf("deviceClasses.migProfiles.disabled refuses %s", p.name)
		}
	}
}

func TestDocs_EveryProfile(t *testing.T) {
	profiles, err := catalog()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/mig.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Profiles\n")
	words := strings.FieldsFunc(table, func(r rune) bool { return strings.ContainsRune(" |:\n", r) })
	for _, p := range profiles {
		if !slices.Contains(words, p.name) {
			t.Errorf("docs/mig.md does not name %s", p.name)
		}
	}
}

// resourceName is how the chart writes a profile's name in that of a resource, as NVIDIA's device plugin does:
// "1g.10gb.me" for "1g.10gb+me".
func resourceName(profile string) string { return strings.ReplaceAll(profile, "+", ".") }
