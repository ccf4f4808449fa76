// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z0-9_]*)\(`)

// testsOf maps the tests that make test-all runs, and on request those that need a GPU, to the texts of their packages' tests.
func testsOf(t *testing.T, onGPUs bool) map[string]string {
	t.Helper()
	packages := map[string]string{} // directory -> text
	names := map[string][]string{}  // directory -> tests
	for _, root := range []string{"api", "cmd", "pkg", "e2e"} {
		err := filepath.WalkDir(filepath.Join(source, root), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "realgpu" && !onGPUs {
				return fs.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			dir := filepath.Dir(path)
			packages[dir] += string(data)
			for _, m := range testFunction.FindAllStringSubmatch(string(data), -1) {
				names[dir] = append(names[dir], m[1])
			}
			return err
		})
		must(t, err)
	}
	tests := map[string]string{}
	for dir, list := range names {
		for _, name := range list {
			tests[name] += packages[dir]
		}
	}
	return tests
}

// TestDocs_ThreatsAreTested checks the threat model: each threat has tests, and each of them exists.
func TestDocs_ThreatsAreTested(t *testing.T) {
	data := readFile(t, filepath.Join(source, "SECURITY.md"))
	_, model, found := strings.Cut(string(data), "\n## Threat model\n")
	if !found {
		t.Fatal("SECURITY.md has no threat model")
	}
	tests, threats := testsOf(t, false), 0
	for line := range strings.Lines(model) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| threat ") {
			continue
		}
		threats++
		if len(cells) != 4 {
			t.Errorf("want threat, attacker, defence and tests: %s", line)
			continue
		}
		spans := codeSpan.FindAllStringSubmatch(cells[3], -1)
		if len(spans) == 0 {
			t.Errorf("no test shows the defence: %s", line)
		}
		for _, span := range spans {
			name, step, _ := strings.Cut(span[1], "/")
			if text, ok := tests[name]; !ok {
				t.Errorf("there is no test %s, which shows the defence in: %s", name, line)
			} else if !strings.Contains(text, `"`+step+`"`) && step != "" {
				t.Errorf("%s has no step %q", name, step)
			}
		}
	}
	if threats < 25 {
		t.Errorf("only %d threats were found", threats)
	}
}

// TestDocs_ConformanceIsTested: what the list of AI conformance says of Cleave names tests that exist.
func TestDocs_ConformanceIsTested(t *testing.T) {
	tests, items := testsOf(t, true), 0
	for line := range strings.Lines(string(readFile(t, filepath.Join(source, "docs", "ai-conformance.md")))) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) < 4 {
			continue
		}
		items++
		for _, span := range codeSpan.FindAllStringSubmatch(cells[3], -1) {
			if tests[span[1]] == "" {
				t.Errorf("there is no test %s, which shows %s", span[1], cells[0])
			}
		}
	}
	if items < 9 {
		t.Errorf("only %d items were found", items)
	}
}
