// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	docLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	docHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notAnchor  = regexp.MustCompile(`[^\w\- ]`)
)

// anchors are those that GitHub gives the headings of a document.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range docHeading.FindAllStringSubmatch(text, -1) {
		all[strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return all
}

func TestDocs_LinksExist(t *testing.T) {
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		data := readFile(t, file)
		for _, m := range docLink.FindAllStringSubmatch(string(data), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			linked, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			} else if anchor != "" && !anchors(string(linked))[anchor] {
				t.Errorf("%s links to %s: there is no such heading", file, m[1])
			}
		}
	}
}

// TestDocs_ArchitectureNamesPackages compares the packages of the page with those that there are.
func TestDocs_ArchitectureNamesPackages(t *testing.T) {
	data := readFile(t, filepath.Join(source, "docs", "architecture.md"))
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`pkg/([a-z]+)[`/]").FindAllStringSubmatch(string(data), -1) {
		named[m[1]] = true
	}
	entries, err := os.ReadDir(filepath.Join(source, "pkg"))
	must(t, err)
	for _, e := range entries {
		if e.IsDir() && !named[e.Name()] {
			t.Errorf("docs/architecture.md does not name pkg/%s", e.Name())
		}
		delete(named, e.Name())
	}
	for name := range named {
		t.Errorf("docs/architecture.md names pkg/%s, which there is not", name)
	}
}
