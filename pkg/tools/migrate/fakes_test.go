// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// outcome is what came of a file, in a form that reads well.
type outcome struct {
	// Rules of each policy, in YAML.
	Rules map[string]string
	// Classes are the devices of each resource, in CEL without what all classes have in common.
	Classes map[string]string
	// Notes are fields and values.
	Notes []string
}

// rulesOf decodes rules, a line each.
func rulesOf(t *testing.T, text string) []v1alpha1.Rule {
	t.Helper()
	p, err := v1alpha1.DecodeNodePolicy([]byte("apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules:\n" + text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return p.Rules
}

// classesOf are the expressions of an import's classes by resource, shortened. Those of the profiles that the plugin has
// with strategy mixed are left out, and "mixed" stands for them.
func classesOf(i *Import) map[string]string {
	mixed, profiles := 0, map[string]string{}
	for _, p := range knownProfiles() {
		profiles[migResource(p)] = p
		if i.classes[migResource(p)] != nil {
			mixed++
		}
	}
	all := map[string]string{}
	for _, c := range i.Classes() {
		resource := *c.Spec.ExtendedResourceName
		text := strings.TrimPrefix(c.Spec.Selectors[0].CEL.Expression, `device.driver == "gpu.cleave.dev" && `)
		text = strings.ReplaceAll(text, `device.attributes["gpu.cleave.dev"]`, "")
		if profile, ok := profiles[resource]; ok && mixed > 20 && text == `.type == "mig" && .profile == "`+profile+`"` {
			all["mixed"] = "all profiles"
			continue
		}
		all[resource] = text
	}
	return all
}

func check(t *testing.T, i *Import, want outcome) {
	t.Helper()
	rules := map[string][]v1alpha1.Rule{}
	for name, text := range want.Rules {
		rules[name] = rulesOf(t, text)
	}
	got := map[string][]v1alpha1.Rule{}
	for _, p := range i.Policies {
		got[p.Metadata.Name] = p.Rules
	}
	if diff := cmp.Diff(rules, got); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Classes, classesOf(i)); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	var notes []string
	for _, n := range i.Notes {
		notes = append(notes, n.Field+": "+n.Value)
		if n.Instead == "" {
			t.Errorf("note %s does not say what holds instead", n.Field)
		}
	}
	if diff := cmp.Diff(want.Notes, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	checkImport(t, i)
}

func problems(err error) []string {
	var lines []string
	for _, p := range v1alpha1.ProblemsOf(err) {
		lines = append(lines, p.Error())
	}
	return lines
}
