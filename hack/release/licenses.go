// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// accepted are the licenses that a release may contain, as SPDX names them: they permit use under Apache-2.0, with their
// text. Another is a decision to take before the release.
var accepted = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0",
	"PostgreSQL", "Unicode-DFS-2016", "Unlicense", "Zlib"}

// licenseNames are the names of files with a license. What licenses ask to be passed on is in NOTICE.
var licenseNames = regexp.MustCompile(`(?i)^(licen[sc]e|copying|unlicense|notice)([-._].*)?$`)

// ofDocuments are the names of licenses of documentation, which no program links.
var ofDocuments = regexp.MustCompile(`(?i)\.docs$`)

// mostUnknown is how many percent of a license file may be text of no known license, such as names of its authors.
const mostUnknown = 25

// license is what is known of the license of a module.
type license struct {
	// ids are what SPDX calls them.
	ids []string
	// texts are those of its files, by their path in the module.
	texts []text
}

// text is a file of a module with a license or a notice.
type text struct {
	path    string
	content string
}

// expression is the license in SPDX's language: all of them apply.
func (l license) expression() string { return strings.Join(l.ids, " AND ") }

// licensesOf collects the licenses of all modules that programs link. A module without one that is accepted is an error.
func licensesOf(ctx context.Context, source string, programs []program) (map[linked]license, error) {
	all := map[linked][]string{}
	for _, p := range programs {
		dirs, err := p.directories(ctx, source)
		if err != nil {
			return nil, err
		}
		for _, m := range p.modules {
			if len(dirs[m]) == 0 {
				return nil, fmt.Errorf("find the license of %s, which %s links: go list does not have it; the source is not that of "+
					"the program", m, p.path)
			}
			for _, dir := range dirs[m] {
				if !slices.Contains(all[m], dir) {
					all[m] = append(all[m], dir)
				}
			}
		}
	}
	licenses := map[linked]license{}
	var errs []error
	for _, m := range sorted(all) {
		l, err := licenseIn(all[m])
		if err != nil {
			errs = append(errs, fmt.Errorf("find the license of %s: %w", m, err))
		}
		licenses[m] = l
	}
	return licenses, errors.Join(errs...)
}

// licenseIn reads the licenses in directories of a module, of which the first is its root.
func licenseIn(dirs []string) (license, error) {
	var l license
	root := dirs[0]
	for _, dir := range slices.Sorted(slices.Values(dirs)) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return l, err
		}
		for _, e := range entries {
			if e.IsDir() || !licenseNames.MatchString(e.Name()) || ofDocuments.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
				continue
			}
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return l, err
			}
			name, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
			if err != nil {
				return l, err
			}
			l.texts = append(l.texts, text{name, strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n")) + "\n"})
			if strings.HasPrefix(strings.ToLower(e.Name()), "notice") {
				continue
			}
			if err := l.recognise(name, content); err != nil {
				return l, err
			}
		}
	}
	if len(l.ids) == 0 {
		return l, fmt.Errorf("no file in %s is a license", root)
	}
	slices.Sort(l.ids)
	l.ids = slices.Compact(l.ids)
	return l, nil
}

// recognise adds the licenses of a file.
func (l *license) recognise(name string, content []byte) error {
	found := licensecheck.Scan(content)
	if len(found.Match) == 0 || found.Percent < 100-mostUnknown {
		return fmt.Errorf("%s is of no known license (%.0f%% of it is known)", name, found.Percent)
	}
	for _, match := range found.Match {
		if match.IsURL {
			continue
		}
		if !slices.Contains(accepted, match.ID) {
			return fmt.Errorf("%s is %s, which is none of those that a release may contain: %v", name, match.ID, accepted)
		}
		l.ids = append(l.ids, match.ID)
	}
	return nil
}

// writeLicenses writes a file with the licenses of all that programs of one source link.
func writeLicenses(ctx context.Context, source, file string, paths []string) error {
	var programs []program
	for _, path := range paths {
		p, err := readProgram(path)
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	licenses, err := licensesOf(ctx, source, programs)
	if err != nil {
		return err
	}
	system, err := systemLicenses(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, thirdParty(licenses, system), 0o644)
}

// thirdParty is the file THIRD_PARTY_LICENSES: the modules and their licenses, then each text once, with those it is of.
func thirdParty(licenses map[linked]license, system []text) []byte {
	var list, texts bytes.Buffer
	of := map[string][]string{} // by text
	var order []string
	add := func(name, content string) {
		if of[content] == nil {
			order = append(order, content)
		}
		of[content] = append(of[content], name)
	}
	for _, s := range system {
		fmt.Fprintf(&list, "%s\n", s.path)
		add(s.path, s.content)
	}
	for _, m := range sorted(licenses) {
		fmt.Fprintf(&list, "%s: %s\n", m, licenses[m].expression())
		for _, t := range licenses[m].texts {
			add(m.String()+", "+t.path, t.content)
		}
	}
	for _, content := range order {
		fmt.Fprintf(&texts, "\n%s\n%s\n\n%s", strings.Repeat("=", 80), strings.Join(of[content], "\n"), content)
	}
	return slices.Concat([]byte("Cleave contains the following software, whose licenses follow.\n\n"), list.Bytes(), texts.Bytes())
}

// glibcCopyright is where Debian has the licenses of the C library. The hook program that runs on the host links it, and the
// image has its files.
const glibcCopyright = "/usr/share/doc/libc6/copyright"

// systemLicenses are those of Go's standard library and of the C library.
func systemLicenses(ctx context.Context) ([]text, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find Go: %w", err)
	}
	golang, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "LICENSE"))
	if err != nil {
		return nil, fmt.Errorf("read the license of Go: %w", err)
	}
	glibc, err := os.ReadFile(glibcCopyright)
	if err != nil {
		return nil, fmt.Errorf("read the license of the C library: %w", err)
	}
	return []text{
		{"Go standard library: " + golangLicense, string(golang)}, {"GNU C Library: " + glibcLicense, string(glibc)},
	}, nil
}

const (
	golangLicense = "BSD-3-Clause"
	glibcLicense  = "LGPL-2.1-or-later"
)
