// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

const head = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"

// named is a document with a policy of one tier.
func named(name, tier string) string {
	return head + "metadata: {name: " + name + "}\nrules: [{tiers: [" + tier + "]}]\n"
}

// directory writes files and returns their directory.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		write(t, filepath.Join(dir, name), data)
	}
	return dir
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tiersOf are the names of a set's policies with the tiers of their first rule.
func tiersOf(t *testing.T, s *Set) map[string][]v1alpha1.Tier {
	t.Helper()
	tiers := map[string][]v1alpha1.Tier{}
	for _, name := range s.Names() {
		got, p, err := s.Select(name)
		if err != nil || got != name || p.Metadata.Name != name {
			t.Errorf("select %s: got %s, %v, %v", name, got, p, err)
			continue
		}
		tiers[name] = p.Rules[0].Tiers
	}
	return tiers
}

func TestLoad_ByName(t *testing.T) {
	const unnamed = head + "rules: [{tiers: [mig]}]"
	mig, mps := []v1alpha1.Tier{v1alpha1.TierMIG}, []v1alpha1.Tier{v1alpha1.TierMPS}
	tests := map[string]struct {
		files map[string]string
		path  string // in the directory; empty for the directory
		want  map[string][]v1alpha1.Tier
	}{
		"a file":                     {map[string]string{"p.yaml": unnamed}, "p.yaml", map[string][]v1alpha1.Tier{"default": mig}},
		"a file of another ending":   {map[string]string{"p.conf": unnamed}, "p.conf", map[string][]v1alpha1.Tier{"default": mig}},
		"a file with a name":         {map[string]string{"p.yaml": named("a", "mig")}, "p.yaml", map[string][]v1alpha1.Tier{"a": mig}},
		"several in a file":          {map[string]string{"p": "# all\n---\n" + named("a", "mig") + "---\n" + named("b.c-1", "mps") + "...\n---\n# no more"}, "p", map[string][]v1alpha1.Tier{"a": mig, "b.c-1": mps}},
		"one of several has no name": {map[string]string{"p": named("a", "mps") + "---\n" + unnamed}, "p", map[string][]v1alpha1.Tier{"a": mps, "default": mig}},
		"JSON with tabs":             {map[string]string{"p": "{\n\t\"apiVersion\": \"gpu.cleave.dev/v1alpha1\",\n\t\"kind\": \"NodePolicy\", \"rules\": [{\"tiers\": [\"mig\"]}]}"}, "p", map[string][]v1alpha1.Tier{"default": mig}},
		"a directory": {map[string]string{
			"training.yaml": unnamed, "x.yml": named("a", "mps"), "dev.json": `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"NodePolicy","rules":[{"tiers":["mps"]}]}`,
			"README.md": "no policy", ".hidden.yaml": "no policy", "sub/a.yaml": named("a", "mig"), "sub.yaml/b": "",
		}, "", map[string][]v1alpha1.Tier{"training": mig, "a": mps, "dev": mps}},
		"several in a directory's file": {map[string]string{"x.yaml": named("a", "mig") + "---\n" + unnamed}, "", map[string][]v1alpha1.Tier{"a": mig, "x": mig}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := Load(filepath.Join(directory(t, tt.files), tt.path), Format{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, tiersOf(t, s)); diff != "" {
				t.Errorf("policies (-want +got):\n%s", diff)
			}
			if !slices.IsSorted(s.Names()) {
				t.Errorf("names %q are not sorted", s.Names())
			}
		})
	}
}

// mount lays out a ConfigMap as the kubelet does: keys are links into a directory behind a link.
func mount(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		write(t, filepath.Join(dir, version, name), data)
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink(version, filepath.Join(dir, "..new")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func TestLoad_MountedConfigMap(t *testing.T) {
	dir := t.TempDir()
	mig, mps := []v1alpha1.Tier{v1alpha1.TierMIG}, []v1alpha1.Tier{v1alpha1.TierMPS}
	for _, step := range []struct {
		version string
		files   map[string]string
		want    map[string][]v1alpha1.Tier
	}{
		{"..2026_01", map[string]string{"a.yaml": head + "rules: [{tiers: [mig]}]"}, map[string][]v1alpha1.Tier{"a": mig}},
		{"..2026_02", map[string]string{"a.yaml": head + "rules: [{tiers: [mps]}]", "b.yaml": named("c", "mig")}, map[string][]v1alpha1.Tier{"a": mps, "c": mig}},
	} {
		mount(t, dir, step.version, step.files)
		s, err := Load(dir, Format{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, tiersOf(t, s)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.version, diff)
		}
	}
}

func TestSet_Select(t *testing.T) {
	several := map[string]string{"p": named("b", "mig") + "---\n" + named("a", "mps")}
	withDefault := map[string]string{"p": named("b", "mig") + "---\n" + named("default", "mps")}
	tests := map[string]struct {
		files       map[string]string
		label, want string
		err         string
	}{
		"label":                   {several, "b", "b", ""},
		"label of an import":      {map[string]string{"p": named("all-1g.10gb", "mig")}, "All_1g.10gb", "all-1g.10gb", ""},
		"no label, a default":     {withDefault, "", "default", ""},
		"the default by name":     {withDefault, "default", "default", ""},
		"no label, no default":    {several, "", "built-in", ""},
		"no file":                 {nil, "", "built-in", ""},
		"no file, a label":        {nil, "b", "", `there is no policy "b", and no other`},
		"a label of none":         {several, "c", "", `there is no policy "c": choose one of a, b`},
		"a label of the built-in": {several, "built-in", "", `there is no policy "built-in": choose one of a, b`},
		"the default by no name":  {several, "default", "", `there is no policy "default": choose one of a, b`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := ""
			if tt.files != nil {
				path = filepath.Join(directory(t, tt.files), "p")
			}
			s, err := Load(path, Format{})
			if err != nil {
				t.Fatal(err)
			}
			got, p, err := s.Select(tt.label)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want || p == nil || (got == BuiltIn) != (p.Rules == nil) {
				t.Errorf("got %s, %+v, %v, want %s", got, p, err, tt.want)
			}
		})
	}
}

func TestLoad_Errors(t *testing.T) {
	files := map[string]string{
		"empty.yaml":      "",
		"comments.yaml":   "# nothing\n---\n",
		"binary.yaml":     "\x7fELF\x00\x01",
		"latin.yaml":      head + "# caf\xe9",
		"large.yaml":      head + strings.Repeat("#", 1<<20),
		"many.yaml":       strings.Repeat("---\na: b\n", 300),
		"bad.yaml":        head + "rules: [{match: {indexes: [0]}, mps: {shares: 99}}, {timeSlice: {shares: 0}}]",
		"named.yaml":      head + "metadata: {name: training}\nrules: [{mps: {shares: 99}}]",
		"twice.yaml":      named("a", "mig") + "---\n" + named("a", "mps"),
		"unnamed.yaml":    head + "---\n" + head,
		"second.yaml":     named("a", "mig") + "---\n" + head + "rules: [{banana: 1}]",
		"syntax.yaml":     named("a", "mig") + "---\nrules: [\n",
		"reserved.yaml":   named("built-in", "mig"),
		"capitals.yaml":   named("Training", "mig"),
		"claim.yaml":      "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: x}",
		"inline.yaml":     named("a", "mig") + "--- {apiVersion: v1, kind: Pod}\n",
		"dir/a.yaml":      named("x", "mig"),
		"dir/b.yaml":      named("x", "mps"),
		"dir/c d.yaml":    head,
		"none/policy":     head,
		"none/x.yamll":    head,
		"nothing/.x.yaml": head,
	}
	dir := directory(t, files)
	tests := map[string]struct {
		path string
		want []string // without the directory in which all lie
	}{
		"missing":                   {"missing.yaml", []string{"read the node policy: stat missing.yaml: no such file or directory"}},
		"empty":                     {"empty.yaml", []string{"empty.yaml: there is no policy: set apiVersion: gpu.cleave.dev/v1alpha1, kind: NodePolicy"}},
		"comments":                  {"comments.yaml", []string{"comments.yaml: there is no policy: set apiVersion: gpu.cleave.dev/v1alpha1, kind: NodePolicy"}},
		"binary":                    {"binary.yaml", []string{`binary.yaml: policy "default": read YAML: yaml: control characters are not allowed`}},
		"no UTF-8":                  {"latin.yaml", []string{"latin.yaml: read YAML: it is no UTF-8 text"}},
		"large":                     {"large.yaml", []string{"large.yaml: 1048577 bytes are more than 1048576"}},
		"many":                      {"many.yaml", []string{"many.yaml: there are more than 256 documents"}},
		"two problems":              {"bad.yaml", []string{`bad.yaml: policy "default": rules[0].mps.shares: Invalid value: 99: must be 1 to 60`, `bad.yaml: policy "default": rules[1].timeSlice.shares: Invalid value: 0: must be 1 to 1000`}},
		"a problem of a name":       {"named.yaml", []string{`named.yaml: policy "training": rules[0].mps.shares: Invalid value: 99: must be 1 to 60`}},
		"a name twice":              {"twice.yaml", []string{`twice.yaml: policy "a": metadata.name: twice.yaml also has a policy of this name: names must be unique`}},
		"no name twice":             {"unnamed.yaml", []string{`unnamed.yaml: policy "default": metadata.name: unnamed.yaml also has a policy of this name: names must be unique`}},
		"the second is wrong":       {"second.yaml", []string{`second.yaml: policy "default": document at line 5: unknown field "rules[0].banana"`}},
		"the second is no YAML":     {"syntax.yaml", []string{`syntax.yaml: policy "default": document at line 5: read YAML: yaml: line 6: did not find expected node content`}},
		"the built-in one":          {"reserved.yaml", []string{`reserved.yaml: policy "default": metadata.name: Invalid value: "built-in": is the name of the policy of nodes that none is given: choose another`}},
		"no name for a label":       {"capitals.yaml", []string{`capitals.yaml: policy "default": metadata.name: Invalid value: "Training": must be the value of a node label: lower-case letters, digits, '-' and '.', 63 at most, such as training`}},
		"another kind":              {"claim.yaml", []string{`claim.yaml: policy "x": unknown apiVersion "resource.k8s.io/v1" of kind "ResourceClaim": want gpu.cleave.dev/v1alpha1`}},
		"another kind, inline":      {"inline.yaml", []string{`inline.yaml: policy "default": document at line 5: unknown apiVersion "v1" of kind "Pod": want gpu.cleave.dev/v1alpha1`}},
		"no policy in a directory":  {"none", []string{"read the node policies of none: no file ends in .yaml, .yml, .json, but there are policy, x.yamll"}},
		"nothing in a directory":    {"nothing", []string{"read the node policies of nothing: there is no file"}},
		"wrong ones in a directory": {"dir", []string{`dir/b.yaml: policy "x": metadata.name: dir/a.yaml also has a policy of this name: names must be unique`, `dir/c d.yaml: policy "c d": metadata.name: Invalid value: "c d": must be the value of a node label: lower-case letters, digits, '-' and '.', 63 at most, such as training`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Load(filepath.Join(dir, tt.path), Format{})
			if err == nil {
				t.Fatal("got no error")
			}
			var got []string
			for _, problem := range v1alpha1.ProblemsOf(err) {
				got = append(got, strings.ReplaceAll(problem.Error(), dir+"/", ""))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// A policy whose name cannot be read may be the default one: the built-in one would offer what that withholds.
func TestSet_SelectNameless(t *testing.T) {
	const broken = "rules: []\nrules: []\n"
	for name, tt := range map[string]struct {
		text    string // of site.yaml
		builtIn bool
	}{
		"no YAML":                {head + "metadata: {name: default}\nrules: [\n", false},
		"a key twice":            {head + "metadata: {name: default}\n" + broken, false},
		"one of several":         {named("a", "mig") + "---\nmetadata: {name: default}\n" + broken, false},
		"no valid name":          {named("Default", "exclusive"), false},
		"no UTF-8":               {named("default", "exclusive") + "# \xff", false},
		"too large":              {named("default", "exclusive") + strings.Repeat("#", 1<<20), false},
		"another name":           {named("other", "banana"), true},
		"that of its file":       {head + "rules: [{tiers: [banana]}]", true},
		"nothing is wrong":       {named("other", "exclusive"), true},
		"another name, not once": {named("other", "mig") + "---\n" + named("other", "mps"), true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := Load(directory(t, map[string]string{"site.yaml": tt.text, "good.yaml": named("good", "mig")}), Format{})
			if s == nil {
				t.Fatal("no policy is left")
			}
			got, _, err := s.Select("")
			if tt.builtIn && (err != nil || got != BuiltIn) || !tt.builtIn && (err == nil || !strings.Contains(err.Error(), "site.yaml: ")) {
				t.Errorf("without a label: got %q, %v, want the built-in policy: %t", got, err, tt.builtIn)
			}
			if _, _, err := s.Select("default"); err == nil || strings.Contains(err.Error(), "there is no policy") != tt.builtIn {
				t.Errorf("label default: got %v", err)
			}
			if _, p, err := s.Select("good"); err != nil || p == nil {
				t.Errorf("label good: got %v", err)
			}
		})
	}
}

// Files of other formats may have their policies' names in them, too.
func TestSet_SelectNamelessOfFormat(t *testing.T) {
	good := &v1alpha1.NodePolicy{Metadata: v1alpha1.PolicyMetadata{Name: "good"}}
	s, err := Load(directory(t, map[string]string{"site.yaml": "broken", "good.yaml": ""}), Format{Name: "other", Decode: func(_ string, data []byte) (*Decoded, error) {
		if string(data) == "broken" {
			return nil, errors.New("no such field")
		}
		return &Decoded{Policies: []*v1alpha1.NodePolicy{good}}, nil
	}})
	if s == nil || err == nil {
		t.Fatalf("got %v and %v, want a set and a problem", s, err)
	}
	if got, _, err := s.Select(""); err == nil || !strings.Contains(err.Error(), "no such field") {
		t.Errorf("without a label: got %q, %v", got, err)
	}
}

// A typo in one policy of a cluster's ConfigMap must not take the nodes of the others down.
func TestLoad_InvalidAmongValid(t *testing.T) {
	dir := directory(t, map[string]string{
		"good.yaml": named("good", "mig"), "bad.yaml": named("bad", "banana"), "default.yaml": "\xff", "a.yaml": named("twice", "mig"), "b.yaml": named("twice", "mps"),
	})
	s, err := Load(dir, Format{})
	if problems := v1alpha1.ProblemsOf(err); s == nil || len(problems) != 3 {
		t.Fatalf("got %v and problems %q, want a set and three problems", s, problems)
	}
	if diff := cmp.Diff([]string{"good"}, s.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for label, want := range map[string]string{"good": "", "bad": "rules[0].tiers[0]", "": "default.yaml", "default": "UTF-8", "twice": "metadata.name", "none": "choose one of good"} {
		_, p, err := s.Select(label)
		if want == "" && (err != nil || p == nil) || want != "" && (err == nil || p != nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("label %q: got %v, %v, want error %q", label, p, err, want)
		}
	}
}
