// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNotesOf(t *testing.T) {
	const changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-02\n\n### Added\n- Two.\n\n## [0.1.1]\n- Three.\n\n## [0.1.0] - 2026-11-23\nNothing.\n"
	for _, test := range []struct{ version, notes, err string }{
		{version: "v0.2.0", notes: "## [0.2.0] - 2027-01-02\n\n### Added\n- Two.\n"},
		{version: "v0.1.1", err: "has no date"},
		{version: "v0.1.0", err: "has no entries"},
		{version: "v0.3.0", err: "CHANGELOG.md has no section of v0.3.0"},
		{version: "v0.2", err: "is not a version"},
		{version: "0.2.0", err: "is not a version"},
		{version: "v0.2.0+build", err: "is not a version"},
		{version: "951665a-dirty", err: "is not a version"},
		{version: "", err: "is not a version"},
		{version: "v0.2.0/../..", err: "is not a version"},
	} {
		notes, err := notesOf(test.version, changelog)
		if diff := cmp.Diff(test.notes, notes); diff != "" {
			t.Errorf("notes of %q (-want +got):\n%s", test.version, diff)
		}
		if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%q gives the error %v, want one with %q", test.version, err, test.err)
		}
	}
}

// The changelog of the repository is read as it is.
func TestNotesOf_Changelog(t *testing.T) {
	data, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if !heading.Match(data) {
		t.Error("CHANGELOG.md has no heading of a version")
	}
}

// repository makes one with a commit.
func repository(t *testing.T) snapshot {
	t.Helper()
	s := snapshot{repository: t.TempDir()}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_COMMITTER_DATE", "2026-11-23T06:00:00Z")
	write(t, filepath.Join(s.repository, "a"), "one")
	for _, args := range [][]string{
		{"init", "-q"}, {"config", "user.name", "a"}, {"config", "user.email", "a@example.com"}, {"add", "."}, {"commit", "-qm", "one"},
	} {
		if _, err := s.git(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotOf(t *testing.T) {
	from := repository(t)
	s, err := snapshotOf(t.Context(), from.repository, false)
	if err != nil || !s.time.Equal(time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)) {
		t.Errorf("a clean tree gives %v: %v", s, err)
	}
	write(t, filepath.Join(from.repository, "a"), "two")
	if _, err := snapshotOf(t.Context(), from.repository, false); err == nil || !strings.Contains(err.Error(), "not committed") {
		t.Errorf("a changed tree gives the error %v", err)
	}
	s, err = snapshotOf(t.Context(), from.repository, true)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "source")
	if err := s.export(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(data) != "two" {
		t.Errorf("the changed tree has %q: %v", data, err)
	}
}

func TestPack_Reproducible(t *testing.T) {
	entries := []entry{{"cleave", 0o755, bytes.Repeat([]byte("x"), 100_000)}, {"LICENSE", 0o644, []byte("Apache")}}
	at := time.Unix(1_700_000_000, 0)
	one, err := pack(entries, at)
	if err != nil {
		t.Fatal(err)
	}
	two, err := pack(entries, at.In(time.FixedZone("elsewhere", 3600)))
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("two archives of the same files differ: %v", err)
	}
	got, err := unpack(one)
	if diff := cmp.Diff(entries, got, cmp.AllowUnexported(entry{})); err != nil || diff != "" {
		t.Errorf("files in the archive (-want +got): %v\n%s", err, diff)
	}
}

const (
	apache = "../../LICENSE"
	// fair is a short license that no release has had.
	fair = "Usage of the works is permitted provided that this instrument is retained with the works, so that any entity that uses " +
		"the works is notified of this instrument.\n\nDISCLAIMER: THE WORKS ARE WITHOUT WARRANTY.\n"
)

func TestLicenseIn(t *testing.T) {
	text, err := os.ReadFile(apache)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		files map[string]string
		want  string
		err   string
	}{
		"a license":              {files: map[string]string{"LICENSE": string(text)}, want: "Apache-2.0"},
		"and a notice":           {files: map[string]string{"License.txt": string(text), "NOTICE": "Thanks."}, want: "Apache-2.0"},
		"none":                   {files: map[string]string{"README": string(text)}, err: "no file"},
		"a notice alone":         {files: map[string]string{"NOTICE": "Thanks."}, err: "no file"},
		"of nobody":              {files: map[string]string{"LICENSE": "You may look."}, err: "is of no known license"},
		"one that is not for us": {files: map[string]string{"COPYING": fair}, err: "COPYING is Fair, which is none of those"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range test.files {
				write(t, filepath.Join(dir, file), content)
			}
			l, err := licenseIn([]string{dir})
			if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("got the error %v, want one with %q", err, test.err)
			}
			if err == nil && l.expression() != test.want {
				t.Errorf("the license is %q, want %q", l.expression(), test.want)
			}
		})
	}
}

// built are the programs that make build and make scheduler make. Modules of all of them have a license that is accepted.
func built(t *testing.T) []program {
	t.Helper()
	hooks, err := filepath.Glob("../../pkg/driver/cdi/hook/dist/*/*.gz")
	if err != nil {
		t.Fatal(err)
	}
	var programs []program
	for _, path := range append([]string{"../../bin/cleave-node"}, hooks...) {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("not built (make build): %v", err)
		}
		p, err := readProgram(path)
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, p)
	}
	if len(programs) < 3 {
		t.Skip("hook programs are not built (make build)")
	}
	return programs
}

func TestBill(t *testing.T) {
	programs := built(t)
	licenses, err := licensesOf(t.Context(), "../..", programs)
	if err != nil {
		t.Fatal(err)
	}
	i := inventory{version: "v9.9.9", commit: "abc", time: time.Unix(1_700_000_000, 0).UTC(), licenses: licenses}
	i.components = []component{{program: programs[0], name: "cleave-node-linux-amd64", carries: []component{{program: programs[2], name: "hook", glibc: "2.36"}}}}
	data, err := bill(i)
	if err != nil {
		t.Fatal(err)
	}
	again, err := bill(i)
	if err != nil || !bytes.Equal(data, again) {
		t.Errorf("two bills of the same programs differ: %v", err)
	}
	compareWithGo(t, data, programs[0], programs[2])
}

func TestValidate(t *testing.T) {
	const valid = `{"SPDXID": "SPDXRef-DOCUMENT", "spdxVersion": "SPDX-2.3", "name": "a", "documentNamespace": "https://example.com/a",
		"packages": [{"SPDXID": "SPDXRef-a", "licenseConcluded": "MIT", "licenseDeclared": "MIT AND BSD-3-Clause"}],
		"relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-a"}]}`
	for name, test := range map[string]struct{ old, new, err string }{
		"valid":              {},
		"another version":    {"SPDX-2.3", "SPDX-1.0", "is SPDX-1.0"},
		"an unknown field":   {`"name"`, `"nickname"`, "nickname"},
		"an unknown license": {"BSD-3-Clause", "BSD-33", "is none of SPDX's"},
		"no license":         {`"MIT"`, `""`, "is none of SPDX's"},
		"a lost element":     {`"relatedSpdxElement": "SPDXRef-a"`, `"relatedSpdxElement": "SPDXRef-b"`, "does not both have"},
		"nothing described":  {`"spdxElementId": "SPDXRef-DOCUMENT"`, `"spdxElementId": "SPDXRef-a"`, "describes no package"},
		"one package twice":  {`"packages": [`, `"packages": [{"SPDXID": "SPDXRef-a", "licenseConcluded": "MIT", "licenseDeclared": "MIT"},`, "twice"},
	} {
		t.Run(name, func(t *testing.T) {
			err := validate([]byte(strings.Replace(valid, test.old, test.new, 1)))
			if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got the error %v, want one with %q", err, test.err)
			}
		})
	}
}

// compareWithGo compares the packages of a bill of materials with what "go version -m" lists of the programs, read without the
// library that wrote it.
func compareWithGo(t *testing.T, data []byte, programs ...program) {
	t.Helper()
	var document struct {
		SPDXVersion   string
		Packages      []struct{ SPDXID, Name, VersionInfo, LicenseConcluded, PrimaryPackagePurpose string }
		Relationships []struct{ SPDXElementID, RelatedSPDXElement string }
	}
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	if document.SPDXVersion != "SPDX-2.3" {
		t.Errorf("the version is %q", document.SPDXVersion)
	}
	got, ids := map[string]bool{}, map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, p := range document.Packages {
		if ids[p.SPDXID] || p.LicenseConcluded == "" {
			t.Errorf("package %s is there twice or has no license: %+v", p.SPDXID, p)
		}
		ids[p.SPDXID] = true
		if p.PrimaryPackagePurpose == "LIBRARY" && p.Name != "stdlib" && p.Name != "glibc" {
			got[p.Name+"@"+p.VersionInfo] = true
		}
	}
	for _, r := range document.Relationships {
		if !ids[r.SPDXElementID] || !ids[r.RelatedSPDXElement] {
			t.Errorf("%+v relates what is not in the document", r)
		}
	}
	want := map[string]bool{}
	for _, p := range programs {
		for _, m := range goVersion(t, p) {
			want[m] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
}

// goVersion are the modules of a program by "go version -m".
func goVersion(t *testing.T, p program) []string {
	t.Helper()
	data, err := readPacked(p.path)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "program")
	write(t, path, string(data))
	out, err := exec.CommandContext(context.Background(), "go", "version", "-m", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
			modules = append(modules, f[1]+"@"+f[2])
		}
	}
	return modules
}
